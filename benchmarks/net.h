/* What the C programs of the benchmarks share: options, time, sockets, percentiles, the end of a MessagePack value. */
#ifndef NET_H
#define NET_H
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_SECONDS 600.0 /* no program here outlives it */

static inline void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* The value of `name=value` among the arguments. */
static inline const char *option(char **argv, const char *name, const char *otherwise) {
    size_t length = strlen(name);
    for (; *argv; argv++)
        if (!strncmp(*argv, name, length) && (*argv)[length] == '=') return *argv + length + 1;
    return otherwise;
}

static inline double number(char **argv, const char *name, double otherwise) {
    const char *text = option(argv, name, NULL);
    return text ? atof(text) : otherwise;
}

/* How long to run, within the bound. */
static inline uint64_t time_limit_us(char **argv, double otherwise) {
    double seconds = number(argv, "seconds", otherwise);
    return (uint64_t)((seconds < MAX_SECONDS ? seconds : MAX_SECONDS) * 1e6);
}

static inline size_t from_hex(const char *hex, unsigned char *bytes, size_t room) {
    size_t length = strlen(hex) / 2;
    if (length > room) length = room;
    for (size_t i = 0; i < length; i++) {
        unsigned value;
        if (sscanf(hex + 2 * i, "%2x", &value) != 1) die("hex");
        bytes[i] = (unsigned char)value;
    }
    return length;
}

static inline uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static inline double own_cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static inline void allow_descriptors(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static inline struct sockaddr_in address_of(uint32_t host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(host)}};
    return address;
}

/* Listen on `host`; INADDR_ANY means every address of the loopback device, and of no other. */
static inline int listen_on(uint32_t host, int port) {
    struct sockaddr_in address = address_of(host, port);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0) die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (host == INADDR_ANY && setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3) < 0) die("SO_BINDTODEVICE");
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0) die("bind");
    if (listen(fd, 4096) < 0) die("listen");
    return fd;
}

/* A socket of client `i`. Source addresses change, so that ports do not run out while closed connections linger. */
static inline int client_socket(unsigned i) {
    struct sockaddr_in from = address_of(INADDR_LOOPBACK + 1 + i % 200, 0);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&from, sizeof from) == 0) return fd;
    close(fd);
    return -1;
}

/* Microseconds counted one by one, up to a second; longer ones are in the last place, and in `max`. */
#define BUCKETS (1 << 20)
struct histogram {
    uint64_t total, max;
    uint32_t counts[BUCKETS];
};

static inline void hist_add(struct histogram *h, uint64_t us) {
    h->counts[us < BUCKETS ? us : BUCKETS - 1]++;
    h->total++;
    if (us > h->max) h->max = us;
}

static inline uint64_t hist_at(const struct histogram *h, double part) {
    uint64_t below = (uint64_t)((double)h->total * part), seen = 0;
    for (uint64_t us = 0; us < BUCKETS - 1; us++)
        if ((seen += h->counts[us]) > below) return us;
    return h->max;
}

/* Where the MessagePack value at `p` ends: its length; 0: not whole yet; -1: no such value. */
static inline long value_end(const unsigned char *p, size_t n) {
    size_t at = 0, values = 1;
    while (values > 0) {
        if (at >= n) return 0;
        unsigned char head = p[at++];
        size_t width = 0, body = 0, inside = 0; /* bytes of a length that follows; bytes; values within */
        int counts = 0;                         /* the length is of 1: bytes, 2: items, 3: pairs */
        if (head < 0x80 || head >= 0xe0) {
        } else if (head < 0x90) inside = 2 * (head & 15u);
        else if (head < 0xa0) inside = head & 15u;
        else if (head < 0xc0) body = head & 31u;
        else if (head == 0xc0 || head == 0xc2 || head == 0xc3) {
        } else if (head >= 0xc4 && head <= 0xc6) counts = 1, width = (size_t)1 << (head - 0xc4);
        else if (head == 0xca || head == 0xcb) body = head == 0xca ? 4 : 8;
        else if (head >= 0xcc && head <= 0xd3) body = (size_t)1 << (head & 3);
        else if (head >= 0xd9 && head <= 0xdb) counts = 1, width = (size_t)1 << (head - 0xd9);
        else if (head >= 0xdc && head <= 0xdf) counts = head < 0xde ? 2 : 3, width = head & 1 ? 4 : 2;
        else return -1;
        if (n - at < width) return 0;
        size_t length = 0;
        while (width-- > 0) length = length << 8 | p[at++];
        if (counts == 1) body = length;
        if (counts >= 2) inside = length * (size_t)(counts - 1);
        if (n - at < body) return 0;
        at += body;
        values += inside - 1;
    }
    return (long)at;
}
#endif
