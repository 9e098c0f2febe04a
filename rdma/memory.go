package rdma

// Access says which operations a memory region allows, local and remote. The bits are those of the
// verbs API.
type Access uint32

// Access flags. Remote write and remote atomic require local write.
const (
	LocalWrite   Access = 1
	RemoteWrite  Access = 2
	RemoteRead   Access = 4
	RemoteAtomic Access = 8
	WindowBind   Access = 16 // memory windows may be bound to the region
)

// MR is a registered memory region. A peer names its bytes by RKey and Addr() plus the offset.
type MR interface {
	LKey() uint32
	RKey() uint32
	Addr() uint64
	Bytes() []byte
	// Invalidate ends remote access by the current R_Key and draws a fresh one. The old key is
	// refused from this call on.
	Invalidate() (newRKey uint32)
	// Window opens buf, a part of the region, under an R_Key of its own until the window is
	// closed. It pins no memory, so it is cheaper than Register: for memory that is registered
	// once and opened to a peer piece by piece (a type 2 memory window, IBTA 10.6.7.2.3). Windows
	// are closed before their region.
	Window(buf []byte, access Access) (MR, error)
	// Close deregisters the region. Packets in flight that name it are refused.
	Close()
}

// Reregisterer is an MR whose memory can be replaced, as by ibv_rereg_mr. Users that open memory
// to a peer for each call reuse their regions.
type Reregisterer interface {
	MR
	// Reregister replaces the memory of the region by buf, with a fresh R_Key and address. The
	// old R_Key is refused from this call on. If buf is nil, and after an error, the region has no
	// memory and no R_Key. A region that allows WindowBind cannot be reregistered. Calls for one
	// region must not be concurrent, and no work request may be using its memory.
	Reregister(buf []byte, access Access) error
}

// MW is a memory window of type 2B (IBTA 10.6.7.2.3). It opens a part of a region to the peer of
// one queue pair, under a key of its own: from the completion of an OpBindMW to an OpLocalInv or
// the peer's SEND with invalidate. Its methods may be called from any goroutine.
type MW interface {
	// RKey is the key under which the window is bound; 0 when it is not.
	RKey() uint32
	// Rekey draws the key for the next OpBindMW, which accepts no other. Recent keys are not
	// drawn again.
	Rekey() uint32
	// Close destroys the window; its key is refused from this call on.
	Close()
}

// FastMR is a region whose memory is registered by work requests (fast registration): from the
// completion of an OpReg to an OpLocalInv of its R_Key or the peer's SEND with invalidate. After
// that both keys are refused. While memory is registered, Bytes returns it.
type FastMR interface {
	MR
	// Rekey draws the R_Key for the next OpReg, which accepts no other.
	Rekey() uint32
}

// PD is a protection domain.
type PD interface {
	// Register makes buf usable by work requests and, as access says, by the
	// peers of the QPs in the domain. buf must not be moved or unmapped until
	// Close: use memory from an Arena.
	Register(buf []byte, access Access) (MR, error)
	// AllocMW makes an unbound memory window.
	AllocMW() (MW, error)
	// AllocMR makes a region without memory, for at most most bytes.
	AllocMR(most int) (FastMR, error)
	Close()
}

// DMABufRegisterer is a PD that can register memory of another device, such as a GPU. The processor
// need not be able to access that memory. The error is ErrUnsupported if the device cannot.
type DMABufRegisterer interface {
	PD
	// RegisterDMABuf registers len(names) bytes of the dma-buf fd, from offset on. The caller may
	// close fd afterwards.
	//
	// names is address space whose addresses name the memory. It is the Bytes of the MR, its parts
	// name the memory in SGEs and Binds, and its addresses are the remote addresses. The caller owns
	// it, and keeps it mapped until Close. It can be a mapping of the dma-buf, or have no access
	// (PROT_NONE) and fault when it is touched. offset and the address of names are equal modulo the
	// page size. WindowBind is refused with ErrUnsupported.
	RegisterDMABuf(fd int, offset uint64, names []byte, access Access) (MR, error)
}
