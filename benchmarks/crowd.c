/* crowd: people who join a queue over few kept connections, poll when they are told to, and go in when it is their turn.
 *
 *     crowd port=N ask=HEX again=HEX clients=N [over=S] [conns=N] [seconds=S]
 *           [gateway=N http_ask=HEX http_again=HEX gateway_clients=N gateway_conns=N http_watch=HEX]
 *           watch=HEX [watch_every=S]
 *
 * `ask` is what a client says first, `again` what it says then; in both, 32 C stand for its id, and in `again` 88 T for
 * its ticket. Client k comes k / clients of `over` seconds after the beginning, on one of the connections, each of which
 * may have many asks under way. `gateway_clients` of them come by HTTP, on connections of their own.
 * One more connection says `watch` every `watch_every` seconds, once what it said before is answered: when nobody is
 * heard, it is not, either.
 *
 * Each line of its input begins something, and is answered by one line of JSON when that is over:
 *
 *     join    all come at once, so to speak. It is over when all have an answer, or 30 s after the last has asked.
 *     wait S  those who wait poll as they are told, for S seconds.
 *     open S  the same, until nobody waits any more or S seconds are over.
 *
 * It ends with its input.
 * It is one file, and long, because people by both doors share one wheel of timers and one report.
 */
#define _GNU_SOURCE
#include "net.h"
#include <sys/prctl.h>

enum { TEXT = 2048, IN_BYTES = 1 << 18, OWED = 1 << 14, TICKET = 88, ID = 32, WHEEL = 1 << 17, GRACE_S = 30, MOST_S = 600 };
#define FINE_US 16   /* latencies are counted in these: up to 16 s */
#define TICK_US 1000 /* a turn of the wheel is 131 s, longer than anybody is told to stay away */

/* What is said, with the places of what changes. */
struct text {
    unsigned char bytes[TEXT];
    size_t size, id, ticket;
};

struct client {
    uint64_t asked;
    uint32_t next; /* of those who are due in the same tick; 0: none, or client number + 1 */
    unsigned char state, heard; /* heard: it has had an answer */
    char ticket[TICKET];
};
enum state { AWAY, ASKS, WAITS, IN, REFUSED };

struct line {
    int fd, http, opening; /* opening: it waits for its first answer, to something else */
    unsigned char *out, *in;
    size_t out_size, out_room, got;
    uint32_t owed[OWED], first, last; /* who is owed an answer, in order */
    int armed;
};

static int queue;
static struct line *lines, watcher;
static unsigned line_count, plain_lines;
static struct client *clients;
static uint32_t client_count, gateway_clients, *wheel;
static uint64_t tick, now;
static struct text ask, again, http_ask, http_again, watch, http_watch;
static struct histogram latency, by_gateway, watched;
static uint64_t watch_asked, watch_every, watch_due, own_longest;

/* Since the last order. While people join, the last answer is the last one to a join. */
static int joining;
static uint64_t began, last_join, joins_heard, last_answer, asks, answers, ok, turns, waits, closed, no_server, other, errors, waiting;
static uint64_t in_second[MOST_S + 1];

static void read_text(struct text *text, char **argv, const char *name) {
    static const char id[] = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC";
    text->size = from_hex(option(argv, name, ""), text->bytes, TEXT);
    unsigned char *at = memmem(text->bytes, text->size, id, ID);
    text->id = at ? (size_t)(at - text->bytes) : TEXT;
    at = memmem(text->bytes, text->size, "TTTTTTTTTTTTTTTT", 16);
    text->ticket = at ? (size_t)(at - text->bytes) : TEXT;
}

static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void write_id(unsigned char *to, uint32_t who) {
    static const char digits[] = "0123456789abcdef";
    for (unsigned half = 0; half < 2; half++) {
        uint64_t bits = mixed(2 * (uint64_t)who + half);
        for (int i = 0; i < ID / 2; i++, bits >>= 4) *to++ = (unsigned char)digits[bits & 15];
    }
}

static void arm(struct line *line) {
    int wanted = line->out_size > 0;
    struct epoll_event event = {.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = line};
    if (line->armed == wanted) return;
    epoll_ctl(queue, EPOLL_CTL_MOD, line->fd, &event);
    line->armed = wanted;
}

static void flush_line(struct line *line) {
    if (line->out_size == 0) return arm(line);
    ssize_t n = send(line->fd, line->out, line->out_size, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) die("send");
    if (n > 0) {
        memmove(line->out, line->out + n, line->out_size - (size_t)n);
        line->out_size -= (size_t)n;
    }
    arm(line);
}

static unsigned char *room_in(struct line *line, size_t size) {
    if (line->out_size + size > line->out_room) {
        line->out_room = 2 * line->out_room + size + 4096;
        line->out = realloc(line->out, line->out_room);
        if (!line->out) die("memory");
    }
    line->out_size += size;
    return line->out + line->out_size - size;
}

/* The gateway's clients are spread evenly among all. */
static struct line *line_of(uint32_t who) {
    if (gateway_clients > 0 && line_count > plain_lines) {
        uint32_t every = client_count / gateway_clients;
        if (who % every == every - 1) return &lines[plain_lines + who / every % (line_count - plain_lines)];
    }
    return &lines[who % plain_lines];
}

static void say(uint32_t who) {
    struct client *client = &clients[who];
    struct line *line = line_of(who);
    int knows = client->state == WAITS;
    const struct text *text = line->http ? (knows ? &http_again : &http_ask) : (knows ? &again : &ask);
    if (line->last - line->first == OWED) die("too many are owed an answer on one connection");
    unsigned char *to = room_in(line, text->size);
    memcpy(to, text->bytes, text->size);
    write_id(to + text->id, who);
    if (text->ticket < TEXT) memcpy(to + text->ticket, client->ticket, TICKET);
    line->owed[line->last++ % OWED] = who;
    client->state = ASKS;
    client->asked = now;
    if (!client->heard) last_join = now;
    asks++;
}

static void come_back(uint32_t who, double after_s) {
    uint64_t due = (now + (uint64_t)(after_s * 1e6)) / TICK_US;
    if (due <= tick) due = tick + 1;
    if (due >= tick + WHEEL) due = tick + WHEEL - 1;
    clients[who].next = wheel[due % WHEEL];
    wheel[due % WHEEL] = who + 1;
}

static double big_double(const unsigned char *p) {
    uint64_t bits = 0;
    double value;
    for (int i = 0; i < 8; i++) bits = bits << 8 | p[i];
    memcpy(&value, &bits, sizeof value);
    return value;
}

static const unsigned char *after(const unsigned char *p, size_t n, const char *what) {
    const unsigned char *at = memmem(p, n, what, strlen(what));
    return at ? at + strlen(what) : NULL;
}

/* Take in what a client was told: bytes of MessagePack, or a body of JSON. */
static void hear(struct line *line, uint32_t who, const unsigned char *p, size_t n) {
    struct client *client = &clients[who];
    uint64_t took = now - client->asked;
    hist_add(line->http ? &by_gateway : &latency, took / FINE_US);
    answers++;
    if (!client->heard) client->heard = 1, joins_heard++, last_answer = now;
    else if (!joining) last_answer = now;
    const unsigned char *result = after(p, n, line->http ? "\"Result\":\"" : "\xa6Result");
    const unsigned char *retry = after(p, n, line->http ? "\"RetryAfter\":" : "\xaaRetryAfter");
    if (!result) {
        errors++, waiting--;
        client->state = REFUSED;
        return;
    }
    result += !line->http;
    double after_s = !retry ? 0 : line->http ? atof((const char *)retry) : *retry == 0xcb ? big_double(retry + 1) : 0;
    if (!memcmp(result, "OK", 2)) {
        uint64_t second = (now - began) / 1000000;
        ok++, waiting--;
        turns += after(p, n, line->http ? "\"Turn\":\"" : "\xa4Turn") != NULL;
        in_second[second < MOST_S ? second : MOST_S]++;
        client->state = IN;
    } else if (!memcmp(result, "Wait", 4)) {
        const unsigned char *ticket = after(p, n, line->http ? "\"Ticket\":\"" : "\xa6Ticket\xda\x00\x58");
        if (!line->http && !ticket && (ticket = memmem(p, n, "\xa6Ticket\xda", 8)) != NULL) ticket += 10;
        if (!ticket || after_s <= 0) errors++;
        if (ticket) memcpy(client->ticket, ticket, TICKET);
        waits++;
        client->state = WAITS;
        come_back(who, after_s);
    } else {
        if (!memcmp(result, "Closed", 6)) closed++;
        else if (!memcmp(result, "NoServer", 8)) no_server++;
        else other++;
        waiting--;
        client->state = REFUSED;
    }
}

/* The length of the response at `p`, and where its body begins; 0: not whole yet. */
static long http_end(const unsigned char *p, size_t n, size_t *body) {
    const unsigned char *end = memmem(p, n, "\r\n\r\n", 4);
    if (!end) return 0;
    const unsigned char *length = memmem(p, (size_t)(end - p), "ontent-", 7);
    while (length && strncasecmp((const char *)length, "ontent-length:", 14))
        length = memmem(length + 1, (size_t)(end - length - 1), "ontent-", 7);
    if (!length) return -1;
    *body = (size_t)(end - p) + 4;
    size_t whole = *body + strtoul((const char *)length + 14, NULL, 10);
    return whole <= n ? (long)whole : 0;
}

static void read_line(struct line *line) {
    ssize_t n = recv(line->fd, line->in + line->got, IN_BYTES - line->got, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("the server has closed a connection");
    line->got += (size_t)n;
    size_t at = 0;
    for (;;) {
        size_t body = 0;
        long length = line->http ? http_end(line->in + at, line->got - at, &body) : value_end(line->in + at, line->got - at);
        if (length < 0) die("no such answer");
        if (length == 0) break;
        if (line->opening) {
            line->opening = 0;
        } else if (line == &watcher) {
            hist_add(&watched, (now - watch_asked) / FINE_US);
            watch_asked = 0;
        } else {
            if (line->first == line->last) die("an answer to nothing");
            hear(line, line->owed[line->first++ % OWED], line->in + at + body, (size_t)length - body);
        }
        at += (size_t)length;
    }
    memmove(line->in, line->in + at, line->got - at);
    line->got -= at;
}

static void keep_watch(void) {
    if (watch_asked || now < watch_due) return;
    memcpy(room_in(&watcher, watch.size), watch.bytes, watch.size);
    watch_asked = now;
    watch_due = now + watch_every;
    flush_line(&watcher);
}

static void open_line(struct line *line, int port, int http) {
    struct sockaddr_in target = address_of(INADDR_LOOPBACK, port);
    static unsigned number_of_socket;
    int one = 1;
    line->http = http;
    line->fd = client_socket(number_of_socket++);
    line->in = malloc(IN_BYTES + 1);
    if (line->fd < 0 || !line->in) die("a connection");
    setsockopt(line->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(line->fd, (struct sockaddr *)&target, sizeof target) < 0 && errno != EINPROGRESS) die("connect");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = line};
    epoll_ctl(queue, EPOLL_CTL_ADD, line->fd, &event);
    /* A server that defers its accepts lets nobody in who has said nothing. */
    const struct text *first = http ? &http_watch : &watch;
    memcpy(room_in(line, first->size), first->bytes, first->size);
    line->opening = 1;
    flush_line(line);
}

/* Most that were let in within any 60 seconds. */
static uint64_t best_minute(void) {
    uint64_t sum = 0, best = 0;
    for (int i = 0; i <= MOST_S; i++) {
        sum += in_second[i];
        if (i >= 60) sum -= in_second[i - 60];
        if (sum > best) best = sum;
    }
    return best;
}

static void begin(void) {
    began = last_join = last_answer = now;
    if (watch_asked) watch_asked = now;
    asks = answers = ok = turns = waits = closed = no_server = other = errors = own_longest = 0;
    memset(in_second, 0, sizeof in_second);
    memset(&latency, 0, sizeof latency);
    memset(&by_gateway, 0, sizeof by_gateway);
    memset(&watched, 0, sizeof watched);
}

static void tell(double cpu_s) {
    /* What is waited for now counts too. */
    if (watch_asked) hist_add(&watched, (now - watch_asked) / FINE_US);
    printf("{\"asks\": %lu, \"answers\": %lu, \"unanswered\": %lu, \"ok\": %lu, \"turns\": %lu, \"waits\": %lu, \"closed\": %lu, "
           "\"no_server\": %lu, \"other\": %lu, \"errors\": %lu, \"waiting\": %lu, \"sent_s\": %.3f, \"seconds\": %.3f, "
           "\"p50_us\": %lu, \"p99_us\": %lu, \"max_us\": %lu, \"gateway_answers\": %lu, \"gateway_p99_us\": %lu, "
           "\"gateway_max_us\": %lu, \"best_minute\": %lu, \"watched\": %lu, \"watched_p50_us\": %lu, \"watched_p99_us\": %lu, "
           "\"watched_max_us\": %lu, \"own_longest_us\": %lu, \"cpu_s\": %.6f}\n",
           asks, answers, asks > answers ? asks - answers : 0, ok, turns, waits, closed, no_server, other, errors, waiting,
           (double)(last_join - began) / 1e6, (double)(last_answer - began) / 1e6, FINE_US * hist_at(&latency, 0.5),
           FINE_US * hist_at(&latency, 0.99), FINE_US * latency.max, by_gateway.total, FINE_US * hist_at(&by_gateway, 0.99), FINE_US * by_gateway.max,
           best_minute(), watched.total, FINE_US * hist_at(&watched, 0.5), FINE_US * hist_at(&watched, 0.99), FINE_US * watched.max, own_longest, cpu_s);
    fflush(stdout);
}

/* Everybody polls when it is due; those who join come by the clock. */
static void turn(struct epoll_event *events, int most_events) {
    struct timespec most = {.tv_nsec = 500000};
    int count = epoll_pwait2(queue, events, most_events, &most, NULL);
    now = now_us();
    for (int i = 0; i < count; i++) {
        struct line *line = events[i].data.ptr;
        if (events[i].events & EPOLLIN) read_line(line);
        if (events[i].events & EPOLLOUT) flush_line(line);
    }
    uint64_t after = now_us();
    if (after - now > own_longest) own_longest = after - now;
    now = after;
}

static void poll_due(void) {
    for (; tick < now / TICK_US; tick++) {
        uint32_t who = wheel[tick % WHEEL];
        wheel[tick % WHEEL] = 0;
        for (uint32_t next; who; who = next) next = clients[who - 1].next, say(who - 1);
    }
}

static void flush_all(void) {
    for (unsigned i = 0; i < line_count; i++)
        if (lines[i].out_size && !lines[i].armed) flush_line(&lines[i]);
}

static void work(const char *order, double over) {
    static struct epoll_event events[256];
    double cpu = own_cpu_s(), limit_s = GRACE_S + over;
    joining = !strncmp(order, "join", 4);
    int opens = sscanf(order, "open %lf", &limit_s) == 1;
    if (!joining && !opens && sscanf(order, "wait %lf", &limit_s) != 1) die("no such order");
    now = now_us();
    begin();
    uint64_t end = began + (uint64_t)(limit_s * 1e6);
    if (tick == 0) tick = now / TICK_US;
    for (uint32_t joined = joining ? 0 : client_count; now < end;) {
        for (; joined < client_count && began + (uint64_t)(over * 1e6 * joined / client_count) <= now; joined++) {
            waiting++;
            say(joined);
        }
        poll_due();
        flush_all();
        keep_watch();
        turn(events, 256);
        if ((joining && joins_heard == client_count) || (opens && !waiting)) break;
    }
    tell(own_cpu_s() - cpu);
}

int main(int argc, char **argv) {
    (void)argc;
    char order[256];
    int port = (int)number(argv, "port", 0), gateway = (int)number(argv, "gateway", 0);
    read_text(&ask, argv, "ask"), read_text(&again, argv, "again");
    read_text(&http_ask, argv, "http_ask"), read_text(&http_again, argv, "http_again");
    read_text(&watch, argv, "watch"), read_text(&http_watch, argv, "http_watch");
    client_count = (uint32_t)number(argv, "clients", 1000);
    gateway_clients = gateway ? (uint32_t)number(argv, "gateway_clients", 0) : 0;
    line_count = (unsigned)number(argv, "conns", 200);
    plain_lines = line_count - (gateway ? (unsigned)number(argv, "gateway_conns", 0) : 0);
    watch_every = (uint64_t)(number(argv, "watch_every", 0.005) * 1e6);
    clients = calloc(client_count, sizeof *clients);
    wheel = calloc(WHEEL, sizeof *wheel);
    lines = calloc(line_count, sizeof *lines);
    if (!clients || !wheel || !lines || !ask.size || !again.size || !watch.size) return 2;

    allow_descriptors();
    prctl(PR_SET_TIMERSLACK, 1000UL);
    alarm((unsigned)(time_limit_us(argv, MAX_SECONDS) / 1000000));
    queue = epoll_create1(0);
    for (unsigned i = 0; i < line_count; i++) open_line(&lines[i], i < plain_lines ? port : gateway, i >= plain_lines);
    open_line(&watcher, port, 0);
    static struct epoll_event events[256];
    for (unsigned i = 0; i <= line_count; i++)
        while ((i < line_count ? &lines[i] : &watcher)->opening) turn(events, 256);
    puts("{\"ready\": 1}");
    fflush(stdout);
    while (fgets(order, sizeof order, stdin)) work(order, number(argv, "over", 1));
    return 0;
}
