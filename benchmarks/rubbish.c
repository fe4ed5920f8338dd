/* rubbish: connections to a port of TLS that mean it no good, so many a second, by the clock.
 *
 *     rubbish port=N hello=HEX [rate=R] [kind=0..3] [seconds=S]
 *
 * `hello` is the first flight of a genuine handshake. Each connection does one of four things, in turn, or the one named:
 * 0: says random bytes. 1: asks in plain HTTP. 2: says hello, and nothing more. 3: says hello, waits for the server's
 * answer, which is what costs the server most, and resets the connection.
 *
 * Prints {"open": N} after a second, runs until standard input ends, and says then what became of all of them.
 */
#define _GNU_SOURCE
#include "net.h"
#include <sys/prctl.h>

enum { MOST = 20000, NOISE_BYTES = 300, KINDS = 4 };
enum kind { NOISE, PLAIN, SILENT, RESET };

struct guest {
    int fd;
    enum kind kind;
    int heard; /* anything from the server */
};

static int queue;
static struct sockaddr_in target;
static unsigned char hello[4096];
static size_t hello_bytes;
static struct guest guests[MOST], *away[MOST];
static unsigned away_count, sockets;
static uint64_t begun, skipped, failed, cut, unheard, resets, most_open;

static void leave(struct guest *guest) {
    if (guest->kind == RESET) {
        struct linger at_once = {.l_onoff = 1, .l_linger = 0};
        setsockopt(guest->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    close(guest->fd);
    guest->fd = -1;
    away[away_count++] = guest;
}

static ssize_t say(struct guest *guest) {
    static const char plain[] = "GET /v1/server HTTP/1.1\r\nHost: x\r\n\r\n";
    static uint64_t state = 88172645463325252u;
    unsigned char noise[NOISE_BYTES];
    if (guest->kind == PLAIN) return send(guest->fd, plain, sizeof plain - 1, MSG_NOSIGNAL);
    if (guest->kind != NOISE) return send(guest->fd, hello, hello_bytes, MSG_NOSIGNAL);
    for (int i = 0; i < NOISE_BYTES; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        noise[i] = (unsigned char)state;
    }
    return send(guest->fd, noise, sizeof noise, MSG_NOSIGNAL);
}

static void come(enum kind kind) {
    struct guest *guest = away[--away_count];
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = guest};
    guest->kind = kind;
    guest->heard = 0;
    guest->fd = client_socket(sockets++);
    if (guest->fd < 0) {
        failed++;
        away[away_count++] = guest;
        return;
    }
    /* Over the loopback a connection is there when connect returns, or its queue is full. */
    if ((connect(guest->fd, (struct sockaddr *)&target, sizeof target) < 0 && errno != EINPROGRESS) || say(guest) <= 0) {
        failed++;
        return leave(guest);
    }
    epoll_ctl(queue, EPOLL_CTL_ADD, guest->fd, &event);
    if (MOST - away_count > most_open) most_open = MOST - away_count;
}

static void hear(struct guest *guest) {
    unsigned char in[16384];
    ssize_t n = guest->fd < 0 ? -1 : recv(guest->fd, in, sizeof in, 0);
    if (guest->fd < 0 || (n < 0 && errno == EAGAIN)) return;
    if (n <= 0) {
        cut++;
        unheard += !guest->heard;
        leave(guest);
    } else if (guest->kind == RESET) {
        resets++;
        leave(guest);
    } else {
        guest->heard = 1;
    }
}

static int told_to_stop(void) {
    char c;
    return read(0, &c, 1) == 0;
}

int main(int argc, char **argv) {
    (void)argc;
    static struct epoll_event events[512];
    double rate = number(argv, "rate", 2000);
    int kind = (int)number(argv, "kind", -1), told = 0;
    target = address_of(INADDR_LOOPBACK, (int)number(argv, "port", 0));
    hello_bytes = from_hex(option(argv, "hello", ""), hello, sizeof hello);
    if (hello_bytes == 0 || rate <= 0) return 2;

    allow_descriptors();
    prctl(PR_SET_TIMERSLACK, 1000UL);
    fcntl(0, F_SETFL, O_NONBLOCK);
    queue = epoll_create1(0);
    for (unsigned i = 0; i < MOST; i++) guests[i].fd = -1, away[away_count++] = &guests[i];
    uint64_t start = now_us(), end = start + time_limit_us(argv, 60), now = start;
    for (uint64_t k = 0; now < end; now = now_us()) {
        for (uint64_t due; (due = start + (uint64_t)((double)k / rate * 1e6)) <= now; k++) {
            if (away_count == 0) {
                skipped++;
                continue;
            }
            begun++;
            come(kind >= 0 ? (enum kind)kind : (enum kind)(k % KINDS));
        }
        struct timespec most = {.tv_nsec = 500000};
        int count = epoll_pwait2(queue, events, 512, &most, NULL);
        for (int i = 0; i < count; i++) hear(events[i].data.ptr);
        if (!told && now > start + 1000000) told = 1, printf("{\"open\": %u}\n", MOST - away_count), fflush(stdout);
        if (told_to_stop()) break;
    }
    printf("{\"begun\": %lu, \"seconds\": %.6f, \"skipped\": %lu, \"failed\": %lu, \"cut\": %lu, \"unheard\": %lu, "
           "\"resets\": %lu, \"open\": %u, \"most_open\": %lu, \"cpu_s\": %.6f}\n",
           begun, (double)(now_us() - start) / 1e6, skipped, failed, cut, unheard, resets, MOST - away_count, most_open,
           own_cpu_s());
    return 0;
}
