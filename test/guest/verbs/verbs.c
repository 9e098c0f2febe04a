/*
 * The requests of a file, one after the other, over rdma-core: the peer of
 * test/rdma/verbs, which says what the file's lines mean.
 *
 *	verbs FILE listen ADDRESS READY	READY is a file that is made when it listens
 *	verbs FILE connect ADDRESS
 */
#include <arpa/inet.h>
#include <endian.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

enum {
	BASE_PORT = 7480,
	MAX_CONNECTIONS = 64,
	MAX_LINES = 256,
	RW_LEN = 16384,
	RO_LEN = 4096,
	WINDOWS = 6,
	WINDOW_LEN = 512,
	WINDOWS_AT = 8192,
	REGIONS = 2 + WINDOWS,
	DEPTH = 4,
	PATIENCE_MS = 20000,
	LATE_US = 100000,
};

/* What a server tells of a region, in network order. */
struct region {
	uint64_t addr;
	uint32_t len;
	uint32_t key;
};

struct line {
	int number;
	enum ibv_wr_opcode op;
	const char *length, *offset;
	int region; /* -1: none */
	int wrong_key, solicited;
	uint64_t compare, swap;
	int status, or; /* another that will do, 0 for none */
};

struct connection {
	char *name;
	int receives, bytes, late, gone, deny;
	int first, last; /* of its lines */

	struct rdma_cm_id *listener, *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *rw_mr, *ro_mr, *recv_mr, *out_mr, *in_mr;
	struct ibv_mw *mw[WINDOWS];
	uint32_t mw_key[WINDOWS];
	uint8_t *rw, *ro, *recv, *out, *in;
};

static struct line lines[MAX_LINES];
static struct connection connections[MAX_CONNECTIONS];
static int n_lines, n_connections;

static void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("verbs: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	exit(1);
}

#define MUST(what, ok)            \
	do {                          \
		if (!(ok))                \
			die("%s: %m", what);  \
	} while (0)

static const struct {
	const char *name;
	enum ibv_wr_opcode op;
} ops[] = {
	{ "send", IBV_WR_SEND }, { "send-imm", IBV_WR_SEND_WITH_IMM }, { "send-inv", IBV_WR_SEND_WITH_INV },
	{ "write", IBV_WR_RDMA_WRITE }, { "write-imm", IBV_WR_RDMA_WRITE_WITH_IMM }, { "read", IBV_WR_RDMA_READ },
	{ "cas", IBV_WR_ATOMIC_CMP_AND_SWP }, { "add", IBV_WR_ATOMIC_FETCH_AND_ADD },
};

static void parse_region(struct line *l, char *word)
{
	char *plus = strchr(word, '+'), *wrong;

	if (plus) {
		*plus = 0;
		l->offset = plus + 1;
	}
	if ((wrong = strchr(word, '!'))) {
		*wrong = 0;
		l->wrong_key = 1;
	}
	if (!strcmp(word, "rw"))
		l->region = 0;
	else if (!strcmp(word, "ro"))
		l->region = 1;
	else if (!strncmp(word, "win", 3) && word[3] >= '0' && word[3] < '0' + WINDOWS && !word[4])
		l->region = 2 + word[3] - '0';
	else
		die("line %d: %s is no memory", l->number, word);
}

static void parse_line(int number, char *text)
{
	char *save, *word = strtok_r(text, " \n", &save);
	struct line *l;
	unsigned i;

	if (!word || word[0] == '#')
		return;
	if (!strcmp(word, "connection")) {
		struct connection *c = &connections[n_connections++];

		if (n_connections > MAX_CONNECTIONS)
			die("too many connections");
		c->name = strtok_r(NULL, " \n", &save);
		c->receives = atoi(strtok_r(NULL, " \n", &save));
		c->bytes = atoi(strtok_r(NULL, " \n", &save));
		word = strtok_r(NULL, " \n", &save);
		c->late = word && !strcmp(word, "late");
		c->gone = word && !strcmp(word, "gone");
		c->deny = word && !strcmp(word, "deny");
		c->first = c->last = n_lines;
		return;
	}
	if (!n_connections || n_lines == MAX_LINES)
		die("line %d: no connection, or too many lines", number);
	l = &lines[n_lines++];
	connections[n_connections - 1].last = n_lines;
	*l = (struct line){ .number = number, .region = -1, .offset = "0" };
	for (i = 0; i < sizeof(ops) / sizeof(ops[0]) && strcmp(ops[i].name, word); i++)
		;
	if (i == sizeof(ops) / sizeof(ops[0]))
		die("line %d: %s?", number, word);
	l->op = ops[i].op;
	l->length = strtok_r(NULL, " \n", &save);
	if (!l->length)
		die("line %d: no length", number);
	while ((word = strtok_r(NULL, " \n", &save))) {
		if (!strcmp(word, "solicited"))
			l->solicited = 1;
		else if (!strcmp(word, "compare"))
			l->compare = strtoull(strtok_r(NULL, " \n", &save), NULL, 10);
		else if (!strcmp(word, "swap"))
			l->swap = strtoull(strtok_r(NULL, " \n", &save), NULL, 10);
		else if (!strcmp(word, "status"))
			l->status = atoi(strtok_r(NULL, " \n", &save));
		else if (!strcmp(word, "or"))
			l->or = atoi(strtok_r(NULL, " \n", &save));
		else
			parse_region(l, word);
	}
}

static void parse_file(const char *name)
{
	FILE *f = fopen(name, "r");
	char text[256], *copy;
	int number = 0;

	MUST(name, f);
	while (fgets(text, sizeof(text), f)) {
		MUST("strdup", copy = strdup(text)); /* the lines keep words of it */
		parse_line(++number, copy);
	}
	fclose(f);
}

/* A key that was never given out. */
static uint32_t spoil(uint32_t key) { return key ^ 0x5a; }

/* A number, or [N]mtu[+N|-N]. */
static uint32_t number(const char *s, int mtu)
{
	char *end;
	long n = strtol(s, &end, 10);

	if (!strncmp(end, "mtu", 3)) {
		n = (end == s ? 1 : n) * mtu;
		n += strtol(end + 3, &end, 10);
	}
	if (*end || n < 0 || n > RW_LEN)
		die("%s is no number", s);
	return n;
}

static uint8_t *memory(size_t n)
{
	void *p = NULL;

	if (posix_memalign(&p, 4096, n ? n : 1))
		die("no memory");
	memset(p, 0, n);
	return p;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The next completion of the requests whose ID is this one. */
static struct ibv_wc completion(struct connection *c, uint64_t id)
{
	int64_t end = now_ms() + PATIENCE_MS;
	struct ibv_wc wc;
	int n;

	while (now_ms() < end) {
		n = ibv_poll_cq(c->cq, 1, &wc);
		MUST("ibv_poll_cq", n >= 0);
		if (n && wc.wr_id == id)
			return wc;
		if (!n)
			usleep(500);
	}
	die("%s: a request does not complete", c->name);
	return wc;
}

enum { ID_RECV = 1, ID_SEND };

static void post_recv(struct connection *c, int bytes, uint32_t lkey)
{
	struct ibv_sge sge = { (uintptr_t)c->recv, bytes, lkey };
	struct ibv_recv_wr wr = { .wr_id = ID_RECV, .sg_list = &sge, .num_sge = 1 }, *bad;

	MUST("ibv_post_recv", !ibv_post_recv(c->id->qp, &wr, &bad));
}

static int post(struct connection *c, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->wr_id = ID_SEND;
	wr->send_flags |= IBV_SEND_SIGNALED;
	MUST("ibv_post_send", !ibv_post_send(c->id->qp, wr, &bad));
	return completion(c, ID_SEND).status;
}

/* Domain, queues and the receives, which all go into the same bytes. */
static void queues(struct connection *c, int receives, int bytes)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 16, .max_recv_wr = receives + 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	MUST("ibv_alloc_pd", c->pd = ibv_alloc_pd(c->id->verbs));
	MUST("ibv_create_cq", c->cq = ibv_create_cq(c->id->verbs, 128, NULL, NULL, 0));
	attr.send_cq = attr.recv_cq = c->cq;
	MUST("rdma_create_qp", !rdma_create_qp(c->id, c->pd, &attr));
	c->recv = memory(bytes);
	MUST("ibv_reg_mr", c->recv_mr = ibv_reg_mr(c->pd, c->recv, bytes, IBV_ACCESS_LOCAL_WRITE));
	while (receives--)
		post_recv(c, bytes, c->recv_mr->lkey);
}

static struct rdma_conn_param params(void)
{
	return (struct rdma_conn_param){
		.responder_resources = DEPTH, .initiator_depth = DEPTH, .retry_count = 7, .rnr_retry_count = 7,
	};
}

/* The event of a channel, which must be this one. */
static void expect(struct rdma_event_channel *ch, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;

	MUST("rdma_get_cm_event", !rdma_get_cm_event(ch, &e));
	if (e->event != want)
		die("%s (status %d) instead of %s", rdma_event_str(e->event), e->status, rdma_event_str(want));
	rdma_ack_cm_event(e);
}

static void release(struct connection *c)
{
	struct ibv_mr *mrs[] = { c->rw_mr, c->ro_mr, c->recv_mr, c->out_mr, c->in_mr };
	unsigned i;

	/* A bound window holds its queue pair. */
	for (i = 0; i < WINDOWS; i++)
		if (c->mw[i])
			ibv_dealloc_mw(c->mw[i]);
	rdma_destroy_qp(c->id);
	for (i = 0; i < sizeof(mrs) / sizeof(mrs[0]); i++)
		if (mrs[i])
			ibv_dereg_mr(mrs[i]);
	ibv_destroy_cq(c->cq);
	ibv_dealloc_pd(c->pd);
	rdma_destroy_id(c->id);
}

/* The server's memory, and the message that tells the client of it. */
static void serve(struct connection *c)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct region *told;
	struct ibv_sge sge;
	struct ibv_send_wr hello = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 };
	int i;

	c->rw = memory(RW_LEN);
	c->ro = memory(RO_LEN);
	for (i = 64; i < RW_LEN; i++)
		c->rw[i] = 31 * i + 7;
	for (i = 0; i < RO_LEN; i++)
		c->ro[i] = 13 * i + 1;
	MUST("ibv_reg_mr", c->rw_mr = ibv_reg_mr(c->pd, c->rw, RW_LEN, access | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND));
	MUST("ibv_reg_mr", c->ro_mr = ibv_reg_mr(c->pd, c->ro, RO_LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
	c->out = memory(sizeof(*told) * REGIONS);
	MUST("ibv_reg_mr", c->out_mr = ibv_reg_mr(c->pd, c->out, sizeof(*told) * REGIONS, IBV_ACCESS_LOCAL_WRITE));
	told = (struct region *)c->out;
	told[0] = (struct region){ htobe64((uintptr_t)c->rw), htobe32(RW_LEN), htobe32(c->rw_mr->rkey) };
	told[1] = (struct region){ htobe64((uintptr_t)c->ro), htobe32(RO_LEN), htobe32(c->ro_mr->rkey) };
	for (i = 0; i < WINDOWS; i++) {
		uintptr_t at = (uintptr_t)c->rw + WINDOWS_AT + i * WINDOW_LEN;
		struct ibv_send_wr bind = { .opcode = IBV_WR_BIND_MW };

		MUST("ibv_alloc_mw", c->mw[i] = ibv_alloc_mw(c->pd, IBV_MW_TYPE_2));
		c->mw_key[i] = ibv_inc_rkey(c->mw[i]->rkey);
		bind.bind_mw.mw = c->mw[i];
		bind.bind_mw.rkey = c->mw_key[i];
		bind.bind_mw.bind_info = (struct ibv_mw_bind_info){
			.mr = c->rw_mr, .addr = at, .length = WINDOW_LEN,
			.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		};
		if (post(c, &bind))
			die("a window cannot be bound");
		told[2 + i] = (struct region){ htobe64(at), htobe32(WINDOW_LEN), htobe32(c->mw_key[i]) };
	}
	if (c->deny) {
		struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_LOCAL_WRITE };

		MUST("ibv_modify_qp", !ibv_modify_qp(c->id->qp, &attr, IBV_QP_ACCESS_FLAGS));
	}
	sge = (struct ibv_sge){ (uintptr_t)c->out, sizeof(*told) * REGIONS, c->out_mr->lkey };
	if (post(c, &hello))
		die("the client cannot be told of the memory");
	if (c->late || c->gone) {
		int64_t end = now_ms() + PATIENCE_MS;

		while (!*(volatile uint8_t *)c->rw && now_ms() < end)
			usleep(500);
		usleep(LATE_US);
		post_recv(c, c->bytes, c->gone ? spoil(c->ro_mr->lkey) : c->recv_mr->lkey);
	}
}

static void listen_on(struct sockaddr_in *addr, const char *ready)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	int i, gone = 0;
	FILE *f;

	MUST("rdma_create_event_channel", ch);
	for (i = 0; i < n_connections; i++) {
		struct connection *c = &connections[i];

		addr->sin_port = htons(BASE_PORT + i);
		MUST("rdma_create_id", !rdma_create_id(ch, &c->listener, c, RDMA_PS_TCP));
		MUST("rdma_bind_addr", !rdma_bind_addr(c->listener, (struct sockaddr *)addr));
		MUST("rdma_listen", !rdma_listen(c->listener, 4));
	}
	f = fopen(ready, "w");
	MUST(ready, f);
	fclose(f);
	while (gone < n_connections) {
		struct rdma_cm_event *e;
		struct connection *c;
		struct rdma_conn_param p = params();

		MUST("rdma_get_cm_event", !rdma_get_cm_event(ch, &e));
		c = e->id->context;
		switch (e->event) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			c->id = e->id;
			rdma_ack_cm_event(e);
			queues(c, c->receives, c->bytes);
			MUST("rdma_accept", !rdma_accept(c->id, &p));
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			rdma_ack_cm_event(e);
			serve(c);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			rdma_ack_cm_event(e);
			rdma_disconnect(c->id);
			release(c);
			gone++;
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			rdma_ack_cm_event(e);
			break;
		default:
			die("%s: %s (status %d)", c->name, rdma_event_str(e->event), e->status);
		}
	}
}

/* One line of the file. */
static void request(struct connection *c, struct line *l, int mtu)
{
	struct region *told = (struct region *)c->recv, *r = l->region < 0 ? NULL : &told[l->region];
	uint64_t addr = r ? be64toh(r->addr) + number(l->offset, mtu) : 0;
	uint32_t key = r ? l->wrong_key ? spoil(be32toh(r->key)) : be32toh(r->key) : 0;
	struct ibv_sge sge = { (uintptr_t)c->out, number(l->length, mtu), c->out_mr->lkey };
	struct ibv_send_wr wr = { .opcode = l->op, .sg_list = &sge, .num_sge = sge.length ? 1 : 0 };
	int status;

	if (l->solicited)
		wr.send_flags = IBV_SEND_SOLICITED;
	switch (l->op) {
	case IBV_WR_SEND_WITH_INV:
		wr.invalidate_rkey = key;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = key;
		wr.wr.atomic.compare_add = l->compare;
		wr.wr.atomic.swap = l->swap;
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = key;
		wr.wr.atomic.compare_add = l->swap;
		break;
	default:
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = key;
	}
	if (l->op == IBV_WR_SEND_WITH_IMM || l->op == IBV_WR_RDMA_WRITE_WITH_IMM)
		wr.imm_data = htonl(0x01020300 + l->number);
	if (l->op == IBV_WR_RDMA_READ || l->op == IBV_WR_ATOMIC_CMP_AND_SWP || l->op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		sge.addr = (uintptr_t)c->in;
		sge.lkey = c->in_mr->lkey;
	}
	status = post(c, &wr);
	if (status != l->status && (!l->or || status != l->or))
		die("%s: line %d completes with status %d, not %d", c->name, l->number, status, l->status);
}

static void connect_to(struct sockaddr_in *addr, int n)
{
	struct connection *c = &connections[n];
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_conn_param p = params();
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int i;

	MUST("rdma_create_event_channel", ch);
	addr->sin_port = htons(BASE_PORT + n);
	MUST("rdma_create_id", !rdma_create_id(ch, &c->id, c, RDMA_PS_TCP));
	MUST("rdma_resolve_addr", !rdma_resolve_addr(c->id, NULL, (struct sockaddr *)addr, 2000));
	expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST("rdma_resolve_route", !rdma_resolve_route(c->id, 2000));
	expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	queues(c, 1, sizeof(struct region) * REGIONS);
	c->out = memory(RW_LEN);
	c->in = memory(RW_LEN);
	for (i = 0; i < RW_LEN; i++)
		c->out[i] = 7 * i + 3;
	MUST("ibv_reg_mr", c->out_mr = ibv_reg_mr(c->pd, c->out, RW_LEN, IBV_ACCESS_LOCAL_WRITE));
	MUST("ibv_reg_mr", c->in_mr = ibv_reg_mr(c->pd, c->in, RW_LEN, IBV_ACCESS_LOCAL_WRITE));
	MUST("rdma_connect", !rdma_connect(c->id, &p));
	expect(ch, RDMA_CM_EVENT_ESTABLISHED);
	MUST("ibv_query_qp", !ibv_query_qp(c->id->qp, &attr, IBV_QP_PATH_MTU, &init));
	if (completion(c, ID_RECV).status)
		die("%s: the server does not tell of its memory", c->name);
	for (i = c->first; i < c->last; i++)
		request(c, &lines[i], 128 << attr.path_mtu);
	MUST("rdma_disconnect", !rdma_disconnect(c->id));
	expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	release(c);
	rdma_destroy_event_channel(ch);
	printf("%s: %d requests\n", c->name, c->last - c->first);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = { .sin_family = AF_INET };
	int i;

	if (argc < 4 || !inet_aton(argv[3], &addr.sin_addr))
		die("verbs FILE listen ADDRESS READY | connect ADDRESS");
	parse_file(argv[1]);
	if (!strcmp(argv[2], "listen") && argc == 5) {
		listen_on(&addr, argv[4]);
		return 0;
	}
	for (i = 0; i < n_connections; i++)
		connect_to(&addr, i);
	return 0;
}
