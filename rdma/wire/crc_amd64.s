#include "textflag.h"

// Rows of crcTable, as offsets from its address in DX. Row D has the multipliers that move 16 bytes
// over the D bits behind them.
#define by2048 0(DX)
#define by1024 16(DX)
#define by512 32(DX)
#define by256 48(DX)
#define by128 64(DX)
#define by64 80(DX)
#define barrett 96(DX)
#define low32 112(DX)

// FOLD moves accumulator a over the bits of row k and adds the 16 bytes at m.
#define FOLD(k, m, a, t) \
	VPCLMULQDQ $0x00, k, a, t \
	VPCLMULQDQ $0x11, k, a, a \
	VPXOR      t, a, a        \
	VPXOR      m, a, a

// FOLD4 is FOLD for the 64 bytes of a ZMM register.
#define FOLD4(k, m, a, t) \
	VPCLMULQDQ $0x00, k, a, t     \
	VPCLMULQDQ $0x11, k, a, a     \
	VPTERNLOGQ $0x96, m, t, a

// FOLDCOPY is FOLD for the 16 bytes at o(DI), which it also copies to o(R8). u is a register for
// them.
#define FOLDCOPY(k, o, a, t, u) \
	VMOVDQU    o(DI), u      \
	VMOVDQU    u, o(R8)      \
	FOLD(k, u, a, t)

// FINISH folds the CX bytes at DI into X8, 16 at a time, and then X8 to the CRC register AX. It is
// the end of both functions: the reduction from 128 bits by way of 96 and 64, and then Barrett's,
// as in the paper that crc.go names.
#define FINISH(again, end) \
	VMOVDQU    by128, X15         \
again:                            \
	CMPQ       CX, $16            \
	JB         end                \
	FOLD(X15, (DI), X8, X9)       \
	ADDQ       $16, DI            \
	SUBQ       $16, CX            \
	JMP        again              \
end:                              \
	VMOVDQU    low32, X14         \
	VPCLMULQDQ $0x10, X15, X8, X9 \
	VPSRLDQ    $8, X8, X8         \
	VPXOR      X9, X8, X8         \
	VMOVDQU    by64, X15          \
	VPAND      X14, X8, X9        \
	VPCLMULQDQ $0x00, X15, X9, X9 \
	VPSRLDQ    $4, X8, X8         \
	VPXOR      X9, X8, X8         \
	BARRETT

// BARRETT reduces the 64 bits of X8 to the register AX. X14 is low32.
#define BARRETT \
	VMOVDQU    barrett, X15       \
	VPAND      X14, X8, X9        \
	VPCLMULQDQ $0x10, X15, X9, X9 \
	VPAND      X14, X9, X9        \
	VPCLMULQDQ $0x00, X15, X9, X9 \
	VPXOR      X9, X8, X8         \
	VPEXTRD    $1, X8, AX

// func crcAVX(reg uint32, head, p *byte, n int, k *[8][2]uint64, dst *byte) (crc uint32, copied int)
TEXT ·crcAVX(SB), NOSPLIT, $0-64
	MOVL    reg+0(FP), AX
	MOVQ    head+8(FP), SI
	MOVQ    p+16(FP), DI
	MOVQ    n+24(FP), CX
	MOVQ    k+32(FP), DX
	VMOVD   AX, X0
	VPXOR   (SI), X0, X1
	VMOVDQU 16(SI), X2
	VMOVDQU 32(SI), X3
	VMOVDQU 48(SI), X4
	VMOVDQU 64(SI), X5
	VMOVDQU 80(SI), X6
	VMOVDQU 96(SI), X7
	VMOVDQU 112(SI), X8
	VMOVDQU by1024, X15
	MOVQ    dst+40(FP), R8
	TESTQ   R8, R8
	JZ      eight

copy:
	CMPQ CX, $128
	JB   four
	FOLDCOPY(X15, 0, X1, X9, X10)
	FOLDCOPY(X15, 16, X2, X11, X12)
	FOLDCOPY(X15, 32, X3, X13, X14)
	FOLDCOPY(X15, 48, X4, X9, X10)
	FOLDCOPY(X15, 64, X5, X11, X12)
	FOLDCOPY(X15, 80, X6, X13, X14)
	FOLDCOPY(X15, 96, X7, X9, X10)
	FOLDCOPY(X15, 112, X8, X11, X12)
	ADDQ $128, DI
	ADDQ $128, R8
	SUBQ $128, CX
	JMP  copy

eight:
	CMPQ CX, $128
	JB   four
	FOLD(X15, (DI), X1, X9)
	FOLD(X15, 16(DI), X2, X10)
	FOLD(X15, 32(DI), X3, X11)
	FOLD(X15, 48(DI), X4, X12)
	FOLD(X15, 64(DI), X5, X13)
	FOLD(X15, 80(DI), X6, X14)
	FOLD(X15, 96(DI), X7, X9)
	FOLD(X15, 112(DI), X8, X10)
	ADDQ $128, DI
	SUBQ $128, CX
	JMP  eight

four:
	VMOVDQU by512, X15
	FOLD(X15, X5, X1, X9)
	FOLD(X15, X6, X2, X10)
	FOLD(X15, X7, X3, X11)
	FOLD(X15, X8, X4, X12)
	CMPQ    CX, $64
	JB      one
	FOLD(X15, (DI), X1, X9)
	FOLD(X15, 16(DI), X2, X10)
	FOLD(X15, 32(DI), X3, X11)
	FOLD(X15, 48(DI), X4, X12)
	ADDQ    $64, DI
	SUBQ    $64, CX

one:
	VMOVDQU by256, X15
	FOLD(X15, X3, X1, X9)
	FOLD(X15, X4, X2, X10)
	VMOVDQU by128, X15
	VMOVDQA X1, X8
	FOLD(X15, X2, X8, X9)
	FINISH(again, end)
	MOVL    AX, crc+48(FP)
	SUBQ    dst+40(FP), R8
	MOVQ    R8, copied+56(FP)
	RET

// func crcAVX512(reg uint32, head, p *byte, n int, k *[8][2]uint64, dst *byte) (crc uint32, copied int)
TEXT ·crcAVX512(SB), NOSPLIT, $0-64
	MOVL            reg+0(FP), AX
	MOVQ            head+8(FP), SI
	MOVQ            p+16(FP), DI
	MOVQ            n+24(FP), CX
	MOVQ            k+32(FP), DX
	MOVQ            dst+40(FP), R8
	VMOVD           AX, X0
	VPXORQ          (SI), Z0, Z3
	VMOVDQU64       64(SI), Z4
	VBROADCASTI32X4 by1024, Z14
	CMPQ            CX, $128
	JB              two
	VMOVDQA64       Z3, Z1
	VMOVDQA64       Z4, Z2
	VMOVDQU64       (DI), Z3
	VMOVDQU64       64(DI), Z4
	ADDQ            $128, DI
	SUBQ            $128, CX
	VBROADCASTI32X4 by2048, Z15
	TESTQ           R8, R8
	JZ              four
	VMOVDQU64       Z3, (R8)
	VMOVDQU64       Z4, 64(R8)
	ADDQ            $128, R8

copy:
	CMPQ      CX, $256
	JB        join
	VMOVDQU64 (DI), Z5
	VMOVDQU64 64(DI), Z6
	VMOVDQU64 128(DI), Z7
	VMOVDQU64 192(DI), Z8
	VMOVDQU64 Z5, (R8)
	VMOVDQU64 Z6, 64(R8)
	VMOVDQU64 Z7, 128(R8)
	VMOVDQU64 Z8, 192(R8)
	FOLD4(Z15, Z5, Z1, Z9)
	FOLD4(Z15, Z6, Z2, Z10)
	FOLD4(Z15, Z7, Z3, Z11)
	FOLD4(Z15, Z8, Z4, Z12)
	ADDQ      $256, DI
	ADDQ      $256, R8
	SUBQ      $256, CX
	JMP       copy

four:
	CMPQ CX, $256
	JB   join
	FOLD4(Z15, (DI), Z1, Z9)
	FOLD4(Z15, 64(DI), Z2, Z10)
	FOLD4(Z15, 128(DI), Z3, Z11)
	FOLD4(Z15, 192(DI), Z4, Z12)
	ADDQ $256, DI
	SUBQ $256, CX
	JMP  four

join:
	FOLD4(Z14, Z3, Z1, Z9)
	FOLD4(Z14, Z4, Z2, Z10)
	VMOVDQA64 Z1, Z3
	VMOVDQA64 Z2, Z4

two:
	CMPQ CX, $128
	JB   one
	FOLD4(Z14, (DI), Z3, Z9)
	FOLD4(Z14, 64(DI), Z4, Z10)
	ADDQ $128, DI
	SUBQ $128, CX
	JMP  two

one:
	VBROADCASTI32X4 by512, Z15
	FOLD4(Z15, Z4, Z3, Z9)
	CMPQ            CX, $64
	JB              lanes
	FOLD4(Z15, (DI), Z3, Z9)
	ADDQ            $64, DI
	SUBQ            $64, CX

lanes:
	VEXTRACTI32X4 $1, Z3, X2
	VEXTRACTI32X4 $2, Z3, X4
	VEXTRACTI32X4 $3, Z3, X5
	VMOVDQA64     X3, X1
	VZEROUPPER
	VMOVDQU       by256, X15
	FOLD(X15, X4, X1, X9)
	FOLD(X15, X5, X2, X10)
	VMOVDQU       by128, X15
	VMOVDQA       X1, X8
	FOLD(X15, X2, X8, X9)
	FINISH(again, end)
	MOVL          AX, crc+48(FP)
	SUBQ          dst+40(FP), R8
	MOVQ          R8, copied+56(FP)
	RET

// func mulmodAVX(a, b uint32, k *[8][2]uint64) uint32
TEXT ·mulmodAVX(SB), NOSPLIT, $0-20
	MOVL       a+0(FP), AX
	MOVL       b+4(FP), BX
	MOVQ       k+8(FP), DX
	VMOVD      AX, X8
	VMOVD      BX, X9
	VPCLMULQDQ $0x00, X9, X8, X8
	VPSLLQ     $1, X8, X8
	VMOVDQU    low32, X14
	BARRETT
	MOVL       AX, ret+16(FP)
	RET
