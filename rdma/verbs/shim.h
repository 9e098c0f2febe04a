//go:build rdmacore && linux

// The border between Go and rdma-core. Work requests and completions cross it as arrays of the
// structs below. These have integers only. Addresses of memory are integers too, so the Go side may
// pass its own slices.

#ifndef RSTORED_VERBS_SHIM_H
#define RSTORED_VERBS_SHIM_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>

// rs_load loads the libraries that are not loaded. It returns NULL, or the error of the loader.
// Only one thread at a time may call rs_load or rs_unload_cm.
const char *rs_load(void);

// librdmacm opens a context for each device and never closes it, also when the kernel waits for
// that to remove the device. So these functions close contexts:
//
// no device is open       rs_close_device closes each context, and rs_unload_cm unloads the library
// another one is open     rs_abandon_device replaces the descriptors of the context of the removed
//                         device by /dev/null. The kernel then removes the device. rs_resync makes
//                         the library list the devices again, before it opens a new one
void rs_unload_cm(void);
int rs_close_device(struct ibv_context *ctx);
void rs_abandon_device(struct ibv_context *ctx);
int rs_being_removed(struct ibv_context *ctx); // the file of the device is gone
int rs_resync(void);

struct rs_send {
	uint64_t id;
	uint64_t raddr;
	uint64_t compare;
	uint64_t swap_add;
	uint64_t bind_addr;
	uint64_t bind_len;
	void *mw;
	void *mr;
	void *ah;
	uint32_t op;    // IBV_WR_*
	uint32_t flags; // IBV_SEND_*
	uint32_t sge, nsge;
	uint32_t imm; // immediate data in host order, or the key that is invalidated
	uint32_t rkey;
	uint32_t bind_access;
	uint32_t qpn, qkey;
};

struct rs_recv {
	uint64_t id;
	uint32_t sge, nsge;
};

struct rs_wc {
	uint64_t id;
	uint32_t status, opcode, byte_len, imm, qpn, src_qp, flags, vendor;
};

// The data path. rs_post_* return 0 or an errno; sges are indexed by the requests.
int rs_post_send(struct ibv_qp *qp, const struct rs_send *wr, int n, struct ibv_sge *sges);
int rs_post_recv(struct ibv_qp *qp, struct ibv_srq *srq, const struct rs_recv *wr, int n, struct ibv_sge *sges);
int rs_poll(struct ibv_cq *cq, struct rs_wc *out, int n);
int rs_arm(struct ibv_cq *cq, int solicited);
// rs_cq_events takes up to n events from a completion channel that does not block, and acknowledges
// them. It returns the cookies (cq_context) of their queues.
int rs_cq_events(struct ibv_comp_channel *ch, uint64_t *cookies, int n);

// Devices.
struct rs_device {
	char name[64];
	char driver_abi[8];
	uint64_t node_guid;
	int transport; // IBV_TRANSPORT_*
};
struct rs_limits {
	int max_qp, max_qp_wr, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_qp_init_rd_atom;
	int max_mw, max_srq, max_srq_wr, max_srq_sge, atomic_cap, phys_port_cnt;
	uint64_t max_mr_size;
	unsigned cap_flags;
};
int rs_query_device(struct ibv_context *ctx, struct rs_limits *out);
int rs_port_mtu(struct ibv_context *ctx, int port, int *link_layer, int *state); // the code of the active MTU
int rs_gid_index(struct ibv_context *ctx, int port, const uint8_t gid[16]);      // RoCE v2 before v1; negative: none
int rs_nonblock(int fd);

// Objects.
struct ibv_pd *rs_alloc_pd(struct ibv_context *ctx);
int rs_dealloc_pd(struct ibv_pd *pd);
struct ibv_mr *rs_reg_mr(struct ibv_pd *pd, uint64_t addr, uint64_t len, int access);
struct ibv_mr *rs_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t off, uint64_t len, uint64_t iova, int fd, int access);
int rs_dereg_mr(struct ibv_mr *mr);
struct ibv_mw *rs_alloc_mw(struct ibv_pd *pd);
int rs_dealloc_mw(struct ibv_mw *mw);
struct ibv_comp_channel *rs_create_channel(struct ibv_context *ctx);
int rs_destroy_channel(struct ibv_comp_channel *ch);
struct ibv_cq *rs_create_cq(struct ibv_context *ctx, int cqe, uint64_t cookie, struct ibv_comp_channel *ch);
int rs_resize_cq(struct ibv_cq *cq, int cqe);
int rs_destroy_cq(struct ibv_cq *cq);
struct ibv_srq *rs_create_srq(struct ibv_pd *pd, uint64_t cookie, int wr, int sge);
int rs_arm_srq(struct ibv_srq *srq, int limit);
int rs_destroy_srq(struct ibv_srq *srq);
struct rs_qp_init {
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_srq *srq;
	uint64_t cookie;
	int type; // IBV_QPT_*
	int send_wr, recv_wr, send_sge, recv_sge, inline_data;
};
// rs_create_qp makes a queue pair, for id if that is not NULL. It sets inline_data to the value
// that the device has granted.
struct ibv_qp *rs_create_qp(struct rdma_cm_id *id, struct rs_qp_init *init);
int rs_destroy_qp(struct rdma_cm_id *id, struct ibv_qp *qp);
int rs_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int rs_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
struct ibv_ah *rs_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int rs_destroy_ah(struct ibv_ah *ah);

struct rs_async {
	uint64_t cookie; // of the queue pair, completion queue or shared receive queue
	int type;        // IBV_EVENT_*
	int port;
};
// rs_async_event takes an event of a context whose descriptor does not block, and acknowledges it.
int rs_async_event(struct ibv_context *ctx, struct rs_async *out);

// The connection manager. Addresses are sockaddr_in or sockaddr_in6.
struct rdma_event_channel *rs_create_event_channel(void);
void rs_destroy_event_channel(struct rdma_event_channel *ch);
struct rdma_cm_id *rs_create_id(struct rdma_event_channel *ch, uint64_t cookie, int ps);
void rs_set_cookie(struct rdma_cm_id *id, uint64_t cookie);
int rs_destroy_id(struct rdma_cm_id *id);
int rs_bind(struct rdma_cm_id *id, void *addr);
int rs_resolve_addr(struct rdma_cm_id *id, void *dst, int ms);
int rs_resolve_route(struct rdma_cm_id *id, int ms);
int rs_listen(struct rdma_cm_id *id, int backlog);
struct rs_param {
	const void *private_data;
	uint8_t private_len, responder_resources, initiator_depth, retry_count, rnr_retry_count;
	uint32_t qpn; // with datagrams
	uint32_t qkey;
};
int rs_connect(struct rdma_cm_id *id, const struct rs_param *p);
int rs_accept(struct rdma_cm_id *id, const struct rs_param *p);
int rs_reject(struct rdma_cm_id *id, const void *data, int len);
int rs_disconnect(struct rdma_cm_id *id);
int rs_notify(struct rdma_cm_id *id, int event);
int rs_set_reuse(struct rdma_cm_id *id);
int rs_set_tos(struct rdma_cm_id *id, uint8_t tos);
int rs_set_ack_timeout(struct rdma_cm_id *id, uint8_t code);
int rs_migrate(struct rdma_cm_id *id, struct rdma_event_channel *ch);

struct rs_event {
	uint64_t cookie;        // of the id, or of the listener of a request
	struct rdma_cm_id *id;  // made by the library for a request
	int type;               // RDMA_CM_EVENT_*
	int status;
	uint8_t private_data[256];
	uint8_t private_len, responder_resources, initiator_depth, retry_count, rnr_retry_count;
	uint32_t qpn; // of the peer
	// Of the answer to a SIDR REQ.
	uint32_t qkey;
	struct ibv_ah_attr ah;
};
// rs_cm_event takes an event of a channel that does not block, and acknowledges it.
int rs_cm_event(struct rdma_event_channel *ch, struct rs_event *out);

struct rs_route {
	struct ibv_context *ctx;
	uint8_t local[28], remote[28]; // sockaddr_in or sockaddr_in6
	int port;                      // of the device
	int mtu;                       // its code, 0 if there is none
	uint16_t pkey;                 // 0 if it is not known
};
void rs_route(struct rdma_cm_id *id, struct rs_route *out);

#endif
