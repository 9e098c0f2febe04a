//go:build rdmacore && linux

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// In verbs.h, macros of the same names hide some functions: they choose a newer function at compile
// time. This program finds the functions at run time, so it needs the functions themselves.
#undef ibv_reg_mr
#undef ibv_query_port

// The functions of the libraries that are used. Posting and polling are not among them, because
// they are in the table of operations of the device's context.
#define VERBS(f) \
	f(ibv_query_device) f(ibv_close_device) f(ibv_alloc_pd) f(ibv_dealloc_pd) f(ibv_reg_mr) f(ibv_dereg_mr) \
	f(ibv_create_comp_channel) f(ibv_destroy_comp_channel) f(ibv_create_cq) f(ibv_resize_cq) f(ibv_destroy_cq) \
	f(ibv_get_cq_event) f(ibv_ack_cq_events) f(ibv_create_srq) f(ibv_modify_srq) f(ibv_destroy_srq) \
	f(ibv_create_qp) f(ibv_modify_qp) f(ibv_query_qp) f(ibv_destroy_qp) f(ibv_create_ah) f(ibv_destroy_ah) \
	f(ibv_get_async_event) f(ibv_ack_async_event) f(ibv_query_gid)
#define RDMACM(f) \
	f(rdma_create_event_channel) f(rdma_destroy_event_channel) f(rdma_create_id) f(rdma_destroy_id) f(rdma_bind_addr) \
	f(rdma_resolve_addr) f(rdma_resolve_route) f(rdma_listen) f(rdma_connect) f(rdma_accept) f(rdma_reject) f(rdma_disconnect) \
	f(rdma_create_qp) f(rdma_destroy_qp) f(rdma_get_cm_event) f(rdma_ack_cm_event) f(rdma_notify) f(rdma_set_option) f(rdma_migrate_id) f(rdma_get_devices) \
	f(rdma_free_devices)

static struct {
#define MEMBER(name) __typeof__(&name) name;
	VERBS(MEMBER) RDMACM(MEMBER)
#undef MEMBER
	int (*ibv_query_port)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *);
	ssize_t (*_ibv_query_gid_table)(struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t, size_t);
	struct ibv_mr *(*ibv_reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);
} fn;

static char load_error[256];
static void *verbs_lib, *cm_lib;

static const char *failed(void)
{
	const char *why = dlerror();
	strncpy(load_error, why ? why : "rdma-core cannot be used", sizeof(load_error) - 1);
	return load_error;
}

const char *rs_load(void)
{
	if (!verbs_lib) {
		void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);
		if (!lib)
			return failed();
#define FIND(name) if (!(fn.name = dlsym(lib, #name))) return failed();
		VERBS(FIND)
		FIND(ibv_query_port)
#undef FIND
		// Newer libraries have these.
		fn._ibv_query_gid_table = dlsym(lib, "_ibv_query_gid_table");
		fn.ibv_reg_dmabuf_mr = dlsym(lib, "ibv_reg_dmabuf_mr");
		verbs_lib = lib;
	}
	if (!cm_lib) {
		void *lib = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
		if (!lib)
			return failed();
#define FIND(name) if (!(fn.name = dlsym(lib, #name))) return failed();
		RDMACM(FIND)
#undef FIND
		cm_lib = lib;
	}
	return NULL;
}

void rs_unload_cm(void)
{
	if (cm_lib)
		dlclose(cm_lib);
	cm_lib = NULL;
}

int rs_close_device(struct ibv_context *ctx) { return fn.ibv_close_device(ctx); }

void rs_abandon_device(struct ibv_context *ctx)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0)
		return;
	dup3(null, ctx->cmd_fd, O_CLOEXEC);
	dup3(null, ctx->async_fd, O_CLOEXEC);
	close(null);
}

int rs_resync(void)
{
	struct ibv_context **list = fn.rdma_get_devices(NULL);
	if (!list)
		return errno;
	fn.rdma_free_devices(list);
	return 0;
}

// chunk is the number of requests in one chain. A longer list is posted as several chains. The
// caller has checked that all of it fits the queue.
enum { chunk = 64 };

// posted returns the errno of a failed post. Libraries return it as a positive number, as they
// should, as a negative one (libsiw), or in errno.
static int posted(int err)
{
	if (err > 0)
		return err;
	if (err < -1)
		return -err;
	return errno ? errno : EIO;
}

// bound reports whether one of the first n requests binds the window.
static int bound(const struct ibv_send_wr *wr, int n, const void *mw)
{
	for (int i = 0; i < n; i++)
		if (wr[i].opcode == IBV_WR_BIND_MW && wr[i].bind_mw.mw == mw)
			return 1;
	return 0;
}

int rs_post_send(struct ibv_qp *qp, const struct rs_send *in, int n, struct ibv_sge *sges)
{
	struct ibv_send_wr wr[chunk];
	while (n > 0) {
		int k = n < chunk ? n : chunk;
		memset(wr, 0, sizeof(wr[0]) * k);
		for (int i = 0; i < k; i++, in++) {
			struct ibv_send_wr *w = &wr[i];
			w->wr_id = in->id;
			w->next = i + 1 < k ? w + 1 : NULL;
			w->sg_list = sges + in->sge;
			w->num_sge = in->nsge;
			w->opcode = in->op;
			w->send_flags = in->flags;
			switch (in->op) {
			case IBV_WR_SEND_WITH_INV:
			case IBV_WR_LOCAL_INV:
				w->invalidate_rkey = in->imm;
				break;
			case IBV_WR_SEND_WITH_IMM:
			case IBV_WR_RDMA_WRITE_WITH_IMM:
				w->imm_data = htobe32(in->imm);
				break;
			case IBV_WR_BIND_MW:
				// Posting reads the window's current key, so a chain may have only one bind of a
				// window.
				if (bound(wr, i, in->mw)) {
					k = i;
					wr[i - 1].next = NULL;
					goto post;
				}
				w->bind_mw.mw = in->mw;
				w->bind_mw.rkey = in->rkey;
				w->bind_mw.bind_info.mr = in->mr;
				w->bind_mw.bind_info.addr = in->bind_addr;
				w->bind_mw.bind_info.length = in->bind_len;
				w->bind_mw.bind_info.mw_access_flags = in->bind_access;
				continue;
			}
			if (in->op == IBV_WR_ATOMIC_CMP_AND_SWP || in->op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
				w->wr.atomic.remote_addr = in->raddr;
				w->wr.atomic.rkey = in->rkey;
				w->wr.atomic.compare_add = in->op == IBV_WR_ATOMIC_CMP_AND_SWP ? in->compare : in->swap_add;
				w->wr.atomic.swap = in->swap_add;
			} else if (in->ah) {
				w->wr.ud.ah = in->ah;
				w->wr.ud.remote_qpn = in->qpn;
				w->wr.ud.remote_qkey = in->qkey;
			} else {
				w->wr.rdma.remote_addr = in->raddr;
				w->wr.rdma.rkey = in->rkey;
			}
		}
post:;
		struct ibv_send_wr *bad;
		int err = ibv_post_send(qp, wr, &bad);
		if (err)
			return posted(err);
		for (int i = 0; i < k; i++)
			if (wr[i].opcode == IBV_WR_BIND_MW)
				wr[i].bind_mw.mw->rkey = wr[i].bind_mw.rkey;
		n -= k;
	}
	return 0;
}

int rs_post_recv(struct ibv_qp *qp, struct ibv_srq *srq, const struct rs_recv *in, int n, struct ibv_sge *sges)
{
	struct ibv_recv_wr wr[chunk];
	while (n > 0) {
		int k = n < chunk ? n : chunk;
		for (int i = 0; i < k; i++, in++) {
			wr[i].wr_id = in->id;
			wr[i].next = i + 1 < k ? &wr[i + 1] : NULL;
			wr[i].sg_list = sges + in->sge;
			wr[i].num_sge = in->nsge;
		}
		struct ibv_recv_wr *bad;
		int err = srq ? ibv_post_srq_recv(srq, wr, &bad) : ibv_post_recv(qp, wr, &bad);
		if (err)
			return posted(err);
		n -= k;
	}
	return 0;
}

int rs_poll(struct ibv_cq *cq, struct rs_wc *out, int n)
{
	struct ibv_wc wc[chunk];
	int total = 0;
	while (total < n) {
		int k = n - total < chunk ? n - total : chunk;
		int got = ibv_poll_cq(cq, k, wc);
		if (got < 0)
			return total ? total : -1;
		for (int i = 0; i < got; i++, out++) {
			out->id = wc[i].wr_id;
			out->status = wc[i].status;
			out->opcode = wc[i].opcode;
			out->byte_len = wc[i].byte_len;
			out->flags = wc[i].wc_flags;
			out->imm = wc[i].wc_flags & IBV_WC_WITH_INV ? wc[i].invalidated_rkey : be32toh(wc[i].imm_data);
			out->qpn = wc[i].qp_num;
			out->src_qp = wc[i].src_qp;
			out->vendor = wc[i].vendor_err;
		}
		total += got;
		if (got < k)
			break;
	}
	return total;
}

int rs_arm(struct ibv_cq *cq, int solicited) { return ibv_req_notify_cq(cq, solicited); }

int rs_cq_events(struct ibv_comp_channel *ch, uint64_t *cookies, int n)
{
	int k = 0;
	while (k < n) {
		struct ibv_cq *cq;
		void *context;
		if (fn.ibv_get_cq_event(ch, &cq, &context))
			break;
		fn.ibv_ack_cq_events(cq, 1);
		cookies[k++] = (uintptr_t)context;
	}
	return k;
}

int rs_query_device(struct ibv_context *ctx, struct rs_limits *out)
{
	struct ibv_device_attr a;
	int err = fn.ibv_query_device(ctx, &a);
	if (err)
		return err;
	*out = (struct rs_limits){
		.max_qp = a.max_qp, .max_qp_wr = a.max_qp_wr, .max_sge = a.max_sge, .max_sge_rd = a.max_sge_rd,
		.max_cq = a.max_cq, .max_cqe = a.max_cqe, .max_mr = a.max_mr, .max_pd = a.max_pd,
		.max_qp_rd_atom = a.max_qp_rd_atom, .max_qp_init_rd_atom = a.max_qp_init_rd_atom,
		.max_mw = a.max_mw, .max_srq = a.max_srq, .max_srq_wr = a.max_srq_wr, .max_srq_sge = a.max_srq_sge,
		.atomic_cap = a.atomic_cap, .phys_port_cnt = a.phys_port_cnt, .max_mr_size = a.max_mr_size,
		.cap_flags = a.device_cap_flags,
	};
	return 0;
}

int rs_port_mtu(struct ibv_context *ctx, int port, int *link_layer, int *state)
{
	// The function fills the struct of older programs, which is the beginning of this one.
	struct ibv_port_attr a;
	memset(&a, 0, sizeof(a));
	if (fn.ibv_query_port(ctx, port, (struct _compat_ibv_port_attr *)&a))
		return 0;
	*link_layer = a.link_layer;
	*state = a.state;
	return a.active_mtu;
}

int rs_gid_index(struct ibv_context *ctx, int port, const uint8_t gid[16])
{
	int found = -1;
	if (fn._ibv_query_gid_table) {
		struct ibv_gid_entry *list = calloc(1024, sizeof(*list));
		ssize_t n = list ? fn._ibv_query_gid_table(ctx, list, 1024, 0, sizeof(*list)) : 0;
		for (ssize_t i = 0; i < n; i++) {
			if (list[i].port_num != port || memcmp(list[i].gid.raw, gid, 16))
				continue;
			if (found < 0 || list[i].gid_type == IBV_GID_TYPE_ROCE_V2)
				found = list[i].gid_index;
		}
		free(list);
		return found;
	}
	for (int i = 0; i < 256; i++) {
		union ibv_gid g;
		if (fn.ibv_query_gid(ctx, port, i, &g))
			break;
		if (!memcmp(g.raw, gid, 16))
			found = i; // version 2 comes after version 1
	}
	return found;
}

int rs_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
}

struct ibv_pd *rs_alloc_pd(struct ibv_context *ctx) { return fn.ibv_alloc_pd(ctx); }
int rs_dealloc_pd(struct ibv_pd *pd) { return fn.ibv_dealloc_pd(pd); }

struct ibv_mr *rs_reg_mr(struct ibv_pd *pd, uint64_t addr, uint64_t len, int access)
{
	return fn.ibv_reg_mr(pd, (void *)(uintptr_t)addr, len, access);
}

struct ibv_mr *rs_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t off, uint64_t len, uint64_t iova, int fd, int access)
{
	if (!fn.ibv_reg_dmabuf_mr) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return fn.ibv_reg_dmabuf_mr(pd, off, len, iova, fd, access);
}

int rs_dereg_mr(struct ibv_mr *mr) { return fn.ibv_dereg_mr(mr); }

struct ibv_mw *rs_alloc_mw(struct ibv_pd *pd)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	return mw;
}

int rs_dealloc_mw(struct ibv_mw *mw) { return ibv_dealloc_mw(mw); }

struct ibv_comp_channel *rs_create_channel(struct ibv_context *ctx)
{
	struct ibv_comp_channel *ch = fn.ibv_create_comp_channel(ctx);
	if (ch && (errno = rs_nonblock(ch->fd))) {
		int err = errno;
		fn.ibv_destroy_comp_channel(ch);
		errno = err;
		return NULL;
	}
	return ch;
}

int rs_destroy_channel(struct ibv_comp_channel *ch) { return fn.ibv_destroy_comp_channel(ch); }

struct ibv_cq *rs_create_cq(struct ibv_context *ctx, int cqe, uint64_t cookie, struct ibv_comp_channel *ch)
{
	return fn.ibv_create_cq(ctx, cqe, (void *)(uintptr_t)cookie, ch, 0);
}

int rs_resize_cq(struct ibv_cq *cq, int cqe) { return fn.ibv_resize_cq(cq, cqe); }
int rs_destroy_cq(struct ibv_cq *cq) { return fn.ibv_destroy_cq(cq); }

struct ibv_srq *rs_create_srq(struct ibv_pd *pd, uint64_t cookie, int wr, int sge)
{
	struct ibv_srq_init_attr a = {.srq_context = (void *)(uintptr_t)cookie, .attr = {.max_wr = wr, .max_sge = sge}};
	return fn.ibv_create_srq(pd, &a);
}

int rs_arm_srq(struct ibv_srq *srq, int limit)
{
	struct ibv_srq_attr a = {.srq_limit = limit};
	return fn.ibv_modify_srq(srq, &a, IBV_SRQ_LIMIT);
}

int rs_destroy_srq(struct ibv_srq *srq) { return fn.ibv_destroy_srq(srq); }

struct ibv_qp *rs_create_qp(struct rdma_cm_id *id, struct rs_qp_init *init)
{
	struct ibv_qp_init_attr a = {
		.qp_context = (void *)(uintptr_t)init->cookie,
		.send_cq = init->send_cq, .recv_cq = init->recv_cq, .srq = init->srq, .qp_type = init->type,
		.cap = {
			.max_send_wr = init->send_wr, .max_recv_wr = init->recv_wr, .max_send_sge = init->send_sge,
			.max_recv_sge = init->recv_sge, .max_inline_data = init->inline_data,
		},
	};
	if (id) {
		if (fn.rdma_create_qp(id, init->pd, &a))
			return NULL;
		init->inline_data = a.cap.max_inline_data;
		return id->qp;
	}
	struct ibv_qp *qp = fn.ibv_create_qp(init->pd, &a);
	if (qp)
		init->inline_data = a.cap.max_inline_data;
	return qp;
}

int rs_destroy_qp(struct rdma_cm_id *id, struct ibv_qp *qp)
{
	if (id) {
		fn.rdma_destroy_qp(id);
		return 0;
	}
	return fn.ibv_destroy_qp(qp);
}

int rs_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) { return fn.ibv_modify_qp(qp, attr, mask); }

int rs_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct ibv_qp_init_attr init;
	return fn.ibv_query_qp(qp, attr, mask, &init);
}

struct ibv_ah *rs_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) { return fn.ibv_create_ah(pd, attr); }
int rs_destroy_ah(struct ibv_ah *ah) { return fn.ibv_destroy_ah(ah); }

int rs_async_event(struct ibv_context *ctx, struct rs_async *out)
{
	struct ibv_async_event e;
	if (fn.ibv_get_async_event(ctx, &e))
		return errno ? errno : EAGAIN;
	memset(out, 0, sizeof(*out));
	out->type = e.event_type;
	switch (e.event_type) {
	case IBV_EVENT_CQ_ERR:
		out->cookie = (uintptr_t)e.element.cq->cq_context;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->cookie = (uintptr_t)e.element.qp->qp_context;
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		out->cookie = (uintptr_t)e.element.srq->srq_context;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
		out->port = e.element.port_num;
		break;
	default:
		break;
	}
	fn.ibv_ack_async_event(&e);
	return 0;
}

struct rdma_event_channel *rs_create_event_channel(void)
{
	struct rdma_event_channel *ch = fn.rdma_create_event_channel();
	if (ch && (errno = rs_nonblock(ch->fd))) {
		int err = errno;
		fn.rdma_destroy_event_channel(ch);
		errno = err;
		return NULL;
	}
	return ch;
}

int rs_being_removed(struct ibv_context *ctx)
{
	return access(ctx->device->dev_path, F_OK) && errno == ENOENT;
}

void rs_destroy_event_channel(struct rdma_event_channel *ch) { fn.rdma_destroy_event_channel(ch); }

struct rdma_cm_id *rs_create_id(struct rdma_event_channel *ch, uint64_t cookie, int ps)
{
	struct rdma_cm_id *id;
	return fn.rdma_create_id(ch, &id, (void *)(uintptr_t)cookie, ps) ? NULL : id;
}

void rs_set_cookie(struct rdma_cm_id *id, uint64_t cookie) { id->context = (void *)(uintptr_t)cookie; }

static int result(int r) { return r ? errno : 0; }

int rs_destroy_id(struct rdma_cm_id *id) { return result(fn.rdma_destroy_id(id)); }
int rs_bind(struct rdma_cm_id *id, void *addr) { return result(fn.rdma_bind_addr(id, addr)); }
int rs_resolve_addr(struct rdma_cm_id *id, void *dst, int ms) { return result(fn.rdma_resolve_addr(id, NULL, dst, ms)); }
int rs_resolve_route(struct rdma_cm_id *id, int ms) { return result(fn.rdma_resolve_route(id, ms)); }
int rs_listen(struct rdma_cm_id *id, int backlog) { return result(fn.rdma_listen(id, backlog)); }

static struct rdma_conn_param param(const struct rs_param *p)
{
	return (struct rdma_conn_param){
		.private_data = p->private_data, .private_data_len = p->private_len,
		.responder_resources = p->responder_resources, .initiator_depth = p->initiator_depth,
		.retry_count = p->retry_count, .rnr_retry_count = p->rnr_retry_count, .qp_num = p->qpn,
	};
}

int rs_connect(struct rdma_cm_id *id, const struct rs_param *p)
{
	struct rdma_conn_param c = param(p);
	return result(fn.rdma_connect(id, &c));
}

int rs_accept(struct rdma_cm_id *id, const struct rs_param *p)
{
	struct rdma_conn_param c = param(p);
	return result(fn.rdma_accept(id, &c));
}

int rs_reject(struct rdma_cm_id *id, const void *data, int len) { return result(fn.rdma_reject(id, data, len)); }
int rs_disconnect(struct rdma_cm_id *id) { return result(fn.rdma_disconnect(id)); }
int rs_notify(struct rdma_cm_id *id, int event) { return result(fn.rdma_notify(id, event)); }

int rs_set_reuse(struct rdma_cm_id *id)
{
	int one = 1;
	return result(fn.rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)));
}

int rs_set_tos(struct rdma_cm_id *id, uint8_t tos)
{
	return result(fn.rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
}

int rs_set_ack_timeout(struct rdma_cm_id *id, uint8_t code)
{
	return result(fn.rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code, sizeof(code)));
}

int rs_cm_event(struct rdma_event_channel *ch, struct rs_event *out)
{
	struct rdma_cm_event *e;
	if (fn.rdma_get_cm_event(ch, &e))
		return errno ? errno : EAGAIN;
	memset(out, 0, sizeof(*out));
	out->type = e->event;
	out->status = e->status;
	if (e->listen_id) {
		out->cookie = (uintptr_t)e->listen_id->context;
		out->id = e->id;
	} else {
		out->cookie = (uintptr_t)e->id->context;
	}
	const void *data;
	int len;
	if (e->id->ps == RDMA_PS_UDP) {
		data = e->param.ud.private_data;
		len = e->param.ud.private_data_len;
		out->qpn = e->param.ud.qp_num;
		out->qkey = e->param.ud.qkey;
		out->ah = e->param.ud.ah_attr;
	} else {
		data = e->param.conn.private_data;
		len = e->param.conn.private_data_len;
		out->responder_resources = e->param.conn.responder_resources;
		out->initiator_depth = e->param.conn.initiator_depth;
		out->retry_count = e->param.conn.retry_count;
		out->rnr_retry_count = e->param.conn.rnr_retry_count;
		out->qpn = e->param.conn.qp_num;
	}
	if (data && len > 0) {
		out->private_len = len < 255 ? len : 255;
		memcpy(out->private_data, data, out->private_len);
	}
	fn.rdma_ack_cm_event(e);
	return 0;
}

void rs_route(struct rdma_cm_id *id, struct rs_route *out)
{
	memset(out, 0, sizeof(*out));
	out->ctx = id->verbs;
	memcpy(out->local, &id->route.addr.src_storage, sizeof(out->local));
	memcpy(out->remote, &id->route.addr.dst_storage, sizeof(out->remote));
	out->port = id->port_num;
	if (id->route.num_paths > 0) {
		out->mtu = id->route.path_rec[0].mtu & 0x3f;
		out->pkey = be16toh(id->route.path_rec[0].pkey);
	}
}

int rs_migrate(struct rdma_cm_id *id, struct rdma_event_channel *ch) { return result(fn.rdma_migrate_id(id, ch)); }
