/* slow: clients that a port must bear. Each is looked at once a second, evenly spread; one that was cut comes again.
 *
 *     slow MODE port=N request=HEX conns=N [seconds=S]
 *
 * drip: sends a byte of its request each second.
 * deaf: sends many requests in one write, as long as the port takes them, and never reads.
 *
 * Prints {"open": N} when all have been connected, runs until standard input ends, and says then how often it was cut.
 */
#define _GNU_SOURCE
#include "net.h"
#include <poll.h>

enum { BURST = 64, BURSTS_A_VISIT = 4 };

struct client {
    int fd;
    size_t at; /* of the next byte */
};

static int deaf;
static struct sockaddr_in target;
static unsigned char request[65536];
static size_t one, burst_bytes;
static unsigned sockets;
static uint64_t opened, cut, sent, blocked;

static void come(struct client *client) {
    client->at = 0;
    client->fd = client_socket(sockets++);
    if (client->fd < 0) return;
    if (deaf) {
        /* As a phone on a bad line: small buffers and small segments, or the loopback takes megabytes for it. */
        int bytes = 2048, segment = 536;
        setsockopt(client->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
        setsockopt(client->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        setsockopt(client->fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
    }
    if (connect(client->fd, (struct sockaddr *)&target, sizeof target) < 0 && errno != EINPROGRESS) {
        close(client->fd);
        client->fd = -1;
        return;
    }
    opened++;
}

static void leave(struct client *client) {
    close(client->fd);
    client->fd = -1;
    cut++;
}

static int is_cut(struct client *client) {
    struct pollfd state = {.fd = client->fd, .events = POLLRDHUP};
    return poll(&state, 1, 0) > 0 && state.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

static void send_byte(struct client *client) {
    if (send(client->fd, request + client->at, 1, MSG_NOSIGNAL) != 1) return;
    client->at = (client->at + 1) % one;
    sent++;
}

static void send_many(struct client *client) {
    for (int i = 0; i < BURSTS_A_VISIT; i++) {
        ssize_t n = send(client->fd, request + client->at, burst_bytes - client->at, MSG_NOSIGNAL);
        if (n < 0) {
            blocked += errno == EAGAIN;
            return;
        }
        client->at = (client->at + (size_t)n) % one; /* go on within the request that was cut off */
        sent += (uint64_t)n;
    }
}

static void visit(struct client *client) {
    if (client->fd >= 0 && is_cut(client)) leave(client);
    if (client->fd < 0) come(client);
    else if (deaf) send_many(client);
    else send_byte(client);
}

static int told_to_stop(void) {
    char c;
    return read(0, &c, 1) == 0;
}

int main(int argc, char **argv) {
    deaf = argc > 1 && !strcmp(argv[1], "deaf");
    unsigned conns = (unsigned)number(argv, "conns", 100);
    target = address_of(INADDR_LOOPBACK, (int)number(argv, "port", 0));
    one = from_hex(option(argv, "request", ""), request, 1024);
    if (one == 0 || conns == 0 || conns > 60000) return 2;
    for (unsigned i = 1; i < BURST; i++) memcpy(request + i * one, request, one);
    burst_bytes = one * BURST;

    allow_descriptors();
    fcntl(0, F_SETFL, O_NONBLOCK);
    struct client *clients = calloc(conns, sizeof *clients);
    if (!clients) die("memory");
    for (unsigned i = 0; i < conns; i++) clients[i].fd = -1;
    uint64_t start = now_us(), end = start + time_limit_us(argv, 60);
    for (uint64_t k = 0;; k++) {
        uint64_t due = start + (uint64_t)((double)k / conns * 1e6), now = now_us();
        if (due > now) usleep((useconds_t)(due - now));
        if (now > end || (k % 16 == 0 && told_to_stop())) break;
        visit(&clients[k % conns]);
        if (k == conns) printf("{\"open\": %lu}\n", opened), fflush(stdout);
    }
    uint64_t open_now = 0;
    for (unsigned i = 0; i < conns; i++) open_now += clients[i].fd >= 0 && !is_cut(&clients[i]);
    printf("{\"open\": %lu, \"opened\": %lu, \"cut\": %lu, \"sent_bytes\": %lu, \"blocked\": %lu}\n", open_now, opened,
           cut, sent, blocked);
    return 0;
}
