/* load: clients that ask as fast as they may. One thread, epoll, nothing blocks; one line of JSON at the end.
 *
 *     load MODE port=N wire=msgpack|http request=HEX conns=N [pipeline=P] [rate=R] [count=K] [seconds=S] [tls=1] [resume=1]
 *
 * short: connect, ask, read the whole answer, close; `conns` at a time.
 * kept:  `conns` connections, on each one write of `pipeline` asks at a time.
 * idle:  open `conns` connections, one ask on each, print {"open": N}, hold them until standard input ends.
 *
 * `rate` asks a second begin by the clock, and their latency counts from when they were due; 0: as fast as they go.
 * An answer of MessagePack must hold OK and an IP; one of HTTP must be 200, and its length is that of the first one.
 *
 * Compiled with -DTLS, `tls=1` has it all go under TLS, whoever the server says it is; `resume=1`: with the session that
 * a server gave last, where there is one. Kept connections are opened at the start then, and the first answer on each,
 * which has waited for the handshake, counts in no latency.
 * It is one file, and long, because all modes share one loop and one report.
 */
#define _GNU_SOURCE
#include "net.h"
#include <sys/prctl.h>
#ifdef TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#endif

enum { IN_BYTES = 8192, IDLE_IN_FLIGHT = 64, MOST_ERRORS = 100000 };
#define GRACE_US 2000000 /* for the last answers; one that takes longer is an error */

struct slot {
    int fd;
    uint32_t armed; /* what epoll watches for; 0: nothing */
    unsigned owed;
    size_t sent, got;
    uint64_t began;
#ifdef TLS
    SSL *tls;  /* NULL: none */
    int fresh; /* nothing was answered yet */
#endif
    unsigned char in[IN_BYTES];
};

static enum { SHORT, KEPT, IDLE } mode;
static int http, queue;
static struct sockaddr_in target;
static unsigned char request[65536];
static size_t request_bytes, http_answer_bytes;
static unsigned pipeline, conns, most_in_flight, sockets;
static double rate;
static uint64_t limit, began, end, issued, answers, errors, in_flight, open_now, dropped;
static struct slot *slots, **idle;
static unsigned idle_count;
static struct histogram latency;

static void watch(struct slot *slot, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = slot};
    if (slot->armed == events) return;
    epoll_ctl(queue, slot->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, slot->fd, &event);
    slot->armed = events;
}

/* What lies under an answer: the socket itself, or TLS. `put` and `take` are as send and recv; `wanted` is what to wait
 * for when one of them has said EAGAIN. A handshake is made by the first `put`. */
static uint64_t handshakes, resumed;
#ifdef TLS
static SSL_CTX *context; /* NULL: no TLS */
static SSL_SESSION *session;
static int resume;

static int keep_session(SSL *tls, SSL_SESSION *fresh) {
    (void)tls;
    if (!resume) return 0;
    if (session) SSL_SESSION_free(session);
    session = fresh;
    return 1;
}

static void begin_tls(void) {
    signal(SIGPIPE, SIG_IGN);
    context = SSL_CTX_new(TLS_client_method());
    if (!context) die("TLS");
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(context, keep_session);
}

static int wrap(struct slot *slot) {
    if (!context) return 1;
    slot->fresh = 1;
    slot->tls = SSL_new(context);
    if (!slot->tls || !SSL_set_fd(slot->tls, slot->fd)) return 0;
    if (session) SSL_set_session(slot->tls, session);
    SSL_set_connect_state(slot->tls);
    return 1;
}

static void unwrap(struct slot *slot) {
    if (slot->tls && SSL_is_init_finished(slot->tls)) SSL_shutdown(slot->tls);
    SSL_free(slot->tls);
    slot->tls = NULL;
}

static ssize_t result_of(struct slot *slot, int n) {
    if (n > 0) return n;
    int why = SSL_get_error(slot->tls, n);
    errno = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return why == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

static ssize_t put(struct slot *slot, const void *data, size_t size) {
    if (!slot->tls) return send(slot->fd, data, size, MSG_NOSIGNAL);
    int before = SSL_is_init_finished(slot->tls);
    ERR_clear_error();
    ssize_t n = result_of(slot, SSL_write(slot->tls, data, (int)size));
    if (!before && SSL_is_init_finished(slot->tls)) {
        handshakes++;
        resumed += (uint64_t)SSL_session_reused(slot->tls);
    }
    return n;
}

static ssize_t take(struct slot *slot, void *data, size_t room) {
    if (!slot->tls) return recv(slot->fd, data, room, 0);
    ERR_clear_error();
    return result_of(slot, SSL_read(slot->tls, data, (int)room));
}

static int counts(struct slot *slot) {
    int fresh = slot->fresh;
    slot->fresh = 0;
    return mode != KEPT || !fresh;
}

static int opens_first(void) { return context && mode == KEPT; }

static uint32_t wanted(struct slot *slot) {
    return slot->tls && SSL_want_read(slot->tls) ? EPOLLIN : EPOLLIN | EPOLLOUT;
}
#else
static int wrap(struct slot *slot) { return slot->fd >= 0; }
static void unwrap(struct slot *slot) { (void)slot; }
static ssize_t put(struct slot *slot, const void *data, size_t size) {
    return send(slot->fd, data, size, MSG_NOSIGNAL);
}
static ssize_t take(struct slot *slot, void *data, size_t room) { return recv(slot->fd, data, room, 0); }
static int counts(struct slot *slot) { return slot->fd >= 0; }
static int opens_first(void) { return 0; }
static uint32_t wanted(struct slot *slot) {
    (void)slot;
    return EPOLLIN | EPOLLOUT;
}
#endif

static void hang_up(struct slot *slot) {
    if (slot->fd < 0) return;
    unwrap(slot);
    close(slot->fd);
    slot->fd = -1;
    slot->armed = 0;
    open_now--;
}

/* Its asks are answered, or will not be. */
static void over(struct slot *slot, int failed) {
    errors += failed;
    in_flight--;
    if (failed || mode == SHORT) hang_up(slot);
    if (mode != IDLE) idle[idle_count++] = slot;
}

static int connect_slot(struct slot *slot) {
    slot->armed = 0;
    slot->fd = client_socket(sockets++);
    if (slot->fd < 0) return 0;
    open_now++;
    return (connect(slot->fd, (struct sockaddr *)&target, sizeof target) == 0 || errno == EINPROGRESS) && wrap(slot);
}

static void send_rest(struct slot *slot) {
    while (slot->sent < request_bytes) {
        ssize_t n = put(slot, request + slot->sent, request_bytes - slot->sent);
        if (n < 0 && errno == EAGAIN) return watch(slot, wanted(slot));
        if (n < 0) return over(slot, 1);
        slot->sent += (size_t)n;
    }
    watch(slot, EPOLLIN);
}

static void ask(struct slot *slot, uint64_t due) {
    slot->began = due;
    slot->sent = slot->got = 0;
    slot->owed = pipeline;
    in_flight++;
    if (slot->fd < 0 && !connect_slot(slot)) return over(slot, 1);
    send_rest(slot); /* over the loopback a connection is there when connect returns */
}

/* The length of the HTTP answer at `p`, known from the first one; 0: not whole yet; -1: not the answer wanted. */
static long http_end(const unsigned char *p, size_t n) {
    if (n >= 12 && memcmp(p, "HTTP/1.1 200", 12)) return -1;
    if (http_answer_bytes == 0) {
        char text[IN_BYTES + 1];
        memcpy(text, p, n);
        text[n] = 0;
        char *body = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "\r\ncontent-length:");
        if (!body) return 0;
        if (!length || length > body) return -1;
        http_answer_bytes = (size_t)(body - text) + 4 + strtoul(length + 17, NULL, 10);
    }
    return n < http_answer_bytes ? 0 : (long)http_answer_bytes;
}

static long answer_end(const unsigned char *p, size_t n) {
    if (http) return http_end(p, n);
    long length = value_end(p, n);
    if (length <= 0) return length;
    int good = memmem(p, (size_t)length, "\xa2OK", 3) && memmem(p, (size_t)length, "\xa2IP", 3);
    return good ? length : -1;
}

static void take_in(struct slot *slot) {
    ssize_t n = take(slot, slot->in + slot->got, IN_BYTES - slot->got);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return over(slot, 1);
    slot->got += (size_t)n;
    uint64_t now = now_us();
    size_t at = 0;
    while (slot->owed > 0) {
        long length = answer_end(slot->in + at, slot->got - at);
        if (length < 0) return over(slot, 1);
        if (length == 0) break;
        at += (size_t)length;
        slot->owed--;
        answers++;
        if (counts(slot)) hist_add(&latency, now - slot->began);
    }
    memmove(slot->in, slot->in + at, slot->got - at);
    slot->got -= at;
    if (slot->owed == 0) over(slot, slot->got > 0); /* more than was asked for */
}

/* One event of a connection. One that owes nothing hears only of its end. */
static void happen(struct slot *slot, uint32_t events) {
    if (slot->fd < 0) return;
    if (slot->owed == 0) {
        dropped++;
        hang_up(slot);
    } else if (slot->sent < request_bytes && (events & EPOLLOUT || slot->armed == EPOLLIN)) {
        send_rest(slot);
    } else {
        take_in(slot);
    }
}

static int may_issue(uint64_t now) { return now < end && (limit == 0 || issued < limit) && errors < MOST_ERRORS; }

static void issue(uint64_t now) {
    for (uint64_t due = now; may_issue(now) && idle_count > 0 && in_flight < most_in_flight; issued++) {
        if (rate > 0 && (due = began + (uint64_t)((double)issued * pipeline / rate * 1e6)) > now) return;
        ask(idle[--idle_count], due);
    }
}

static void wait_some(uint64_t now) {
    static struct epoll_event events[512];
    struct timespec most = {.tv_nsec = 100000000};
    if (rate > 0 && idle_count > 0 && may_issue(now)) {
        uint64_t due = began + (uint64_t)((double)issued * pipeline / rate * 1e6);
        most.tv_nsec = due <= now ? 0 : due - now > 100000 ? 100000000 : (long)(due - now) * 1000;
    }
    int count = epoll_pwait2(queue, events, 512, &most, NULL);
    for (int i = 0; i < count; i++)
        if (events[i].data.ptr) happen(events[i].data.ptr, events[i].events);
}

static void run(void) {
    uint64_t now = began = now_us();
    for (unsigned left = opens_first() ? idle_count : 0; left > 0; left--) ask(idle[--idle_count], now);
    while (may_issue(now) || in_flight > 0) {
        issue(now);
        if (mode == IDLE && idle_count == 0 && in_flight == 0) break;
        if (now > end + GRACE_US) break;
        wait_some(now);
        now = now_us();
    }
    errors += in_flight;
}

/* Hold what is open until standard input ends. */
static void hold(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    printf("{\"open\": %lu}\n", open_now);
    fflush(stdout);
    fcntl(0, F_SETFL, O_NONBLOCK);
    epoll_ctl(queue, EPOLL_CTL_ADD, 0, &event);
    for (char c; now_us() < end && (read(0, &c, 1) != 0);) wait_some(end);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    mode = !strcmp(name, "idle") ? IDLE : !strcmp(name, "kept") ? KEPT : SHORT;
    http = !strcmp(option(argv, "wire", "msgpack"), "http");
    conns = (unsigned)number(argv, "conns", 64);
    pipeline = (unsigned)number(argv, "pipeline", 1);
    rate = number(argv, "rate", 0);
    limit = (uint64_t)number(argv, "count", mode == IDLE ? conns : 0);
    target = address_of(INADDR_LOOPBACK, (int)number(argv, "port", 0));
#ifdef TLS
    resume = number(argv, "resume", 0) != 0;
    if (number(argv, "tls", 0) != 0) begin_tls();
#else
    if (number(argv, "tls", 0) != 0) return 2;
#endif
    size_t one = from_hex(option(argv, "request", ""), request, 1024);
    if (one == 0 || pipeline == 0 || pipeline > 64 || conns == 0 || conns > 60000) return 2;
    for (unsigned i = 1; i < pipeline; i++) memcpy(request + i * one, request, one);
    request_bytes = one * pipeline;
    most_in_flight = mode == IDLE ? IDLE_IN_FLIGHT : conns;

    allow_descriptors();
    prctl(PR_SET_TIMERSLACK, 1000UL);
    queue = epoll_create1(0);
    slots = calloc(conns, sizeof *slots);
    idle = calloc(conns, sizeof *idle);
    if (!slots || !idle) die("memory");
    for (unsigned i = 0; i < conns; i++) {
        slots[i].fd = -1;
        idle[idle_count++] = &slots[i];
    }
    uint64_t start = now_us();
    end = start + time_limit_us(argv, 5);
    run();
    double seconds = (double)(now_us() - start) / 1e6;
    if (mode == IDLE) hold();
    printf("{\"asks\": %lu, \"errors\": %lu, \"seconds\": %.6f, \"p50_us\": %lu, \"p99_us\": %lu, \"max_us\": %lu, "
           "\"cpu_s\": %.6f, \"open\": %lu, \"dropped\": %lu, \"handshakes\": %lu, \"resumed\": %lu}\n",
           answers, errors, seconds, hist_at(&latency, 0.5), hist_at(&latency, 0.99), latency.max, own_cpu_s(),
           open_now, dropped, handshakes, resumed);
    return 0;
}
