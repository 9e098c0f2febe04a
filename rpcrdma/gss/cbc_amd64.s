#include "textflag.h"

// func subWord(w uint32) uint32
TEXT ·subWord(SB), NOSPLIT, $0-12
	MOVL            w+0(FP), AX
	VMOVD           AX, X0
	VPSHUFD         $0, X0, X0
	VAESKEYGENASSIST $0, X0, X0
	VMOVD           X0, AX
	MOVL            AX, ret+8(FP)
	RET

// func inverseMix(k *[16]byte)
TEXT ·inverseMix(SB), NOSPLIT, $0-8
	MOVQ    k+0(FP), AX
	VMOVDQU (AX), X0
	VAESIMC X0, X0
	VMOVDQU X0, (AX)
	RET

// func encryptCBC(keys *[15][16]byte, rounds int, b *byte, n int)
//
// X0 is the last ciphertext block, X1 to X15 are the round keys. An AES-128 key has 10 rounds, whose
// keys end in X11.
TEXT ·encryptCBC(SB), NOSPLIT, $0-32
	MOVQ    keys+0(FP), AX
	MOVQ    rounds+8(FP), CX
	MOVQ    b+16(FP), DI
	MOVQ    n+24(FP), DX
	VPXOR   X0, X0, X0
	VMOVDQU 0(AX), X1
	VMOVDQU 16(AX), X2
	VMOVDQU 32(AX), X3
	VMOVDQU 48(AX), X4
	VMOVDQU 64(AX), X5
	VMOVDQU 80(AX), X6
	VMOVDQU 96(AX), X7
	VMOVDQU 112(AX), X8
	VMOVDQU 128(AX), X9
	VMOVDQU 144(AX), X10
	VMOVDQU 160(AX), X11
	VMOVDQU 176(AX), X12
	VMOVDQU 192(AX), X13
	VMOVDQU 208(AX), X14
	VMOVDQU 224(AX), X15

encrypt:
	VPXOR   (DI), X0, X0
	VPXOR   X1, X0, X0
	VAESENC X2, X0, X0
	VAESENC X3, X0, X0
	VAESENC X4, X0, X0
	VAESENC X5, X0, X0
	VAESENC X6, X0, X0
	VAESENC X7, X0, X0
	VAESENC X8, X0, X0
	VAESENC X9, X0, X0
	VAESENC X10, X0, X0
	CMPQ    CX, $14
	JEQ     more
	VAESENCLAST X11, X0, X0
	JMP     encrypted

more:
	VAESENC X11, X0, X0
	VAESENC X12, X0, X0
	VAESENC X13, X0, X0
	VAESENC X14, X0, X0
	VAESENCLAST X15, X0, X0

encrypted:
	VMOVDQU X0, (DI)
	ADDQ    $16, DI
	SUBQ    $16, DX
	JNE     encrypt
	RET

// ROUND8 is one round, or the last one, of eight blocks. The key is at BX.
#define ROUND8(op) \
	VMOVDQU (BX), X8 \
	op      X8, X0, X0 \
	op      X8, X1, X1 \
	op      X8, X2, X2 \
	op      X8, X3, X3 \
	op      X8, X4, X4 \
	op      X8, X5, X5 \
	op      X8, X6, X6 \
	op      X8, X7, X7

// func decryptCBC(keys *[15][16]byte, rounds int, b *byte, n int)
//
// X9 is the ciphertext block before b. Eight blocks are decrypted at once: their ciphertext stays in
// memory until all of them are.
TEXT ·decryptCBC(SB), NOSPLIT, $0-32
	MOVQ  keys+0(FP), AX
	MOVQ  rounds+8(FP), CX
	MOVQ  b+16(FP), DI
	MOVQ  n+24(FP), DX
	VPXOR X9, X9, X9

eight:
	CMPQ    DX, $128
	JLT     single
	MOVQ    AX, BX
	MOVQ    CX, SI
	VMOVDQU (BX), X8
	VPXOR   0(DI), X8, X0
	VPXOR   16(DI), X8, X1
	VPXOR   32(DI), X8, X2
	VPXOR   48(DI), X8, X3
	VPXOR   64(DI), X8, X4
	VPXOR   80(DI), X8, X5
	VPXOR   96(DI), X8, X6
	VPXOR   112(DI), X8, X7

round8:
	ADDQ $16, BX
	DECQ SI
	JEQ  last8
	ROUND8(VAESDEC)
	JMP  round8

last8:
	ROUND8(VAESDECLAST)
	VPXOR   X9, X0, X0
	VPXOR   0(DI), X1, X1
	VPXOR   16(DI), X2, X2
	VPXOR   32(DI), X3, X3
	VPXOR   48(DI), X4, X4
	VPXOR   64(DI), X5, X5
	VPXOR   80(DI), X6, X6
	VPXOR   96(DI), X7, X7
	VMOVDQU 112(DI), X9
	VMOVDQU X0, 0(DI)
	VMOVDQU X1, 16(DI)
	VMOVDQU X2, 32(DI)
	VMOVDQU X3, 48(DI)
	VMOVDQU X4, 64(DI)
	VMOVDQU X5, 80(DI)
	VMOVDQU X6, 96(DI)
	VMOVDQU X7, 112(DI)
	ADDQ    $128, DI
	SUBQ    $128, DX
	JMP     eight

single:
	TESTQ   DX, DX
	JEQ     decrypted
	MOVQ    AX, BX
	MOVQ    CX, SI
	VMOVDQU (DI), X1
	VPXOR   (BX), X1, X0

round1:
	ADDQ    $16, BX
	DECQ    SI
	JEQ     last1
	VMOVDQU (BX), X8
	VAESDEC X8, X0, X0
	JMP     round1

last1:
	VMOVDQU (BX), X8
	VAESDECLAST X8, X0, X0
	VPXOR   X9, X0, X0
	VMOVDQU X0, (DI)
	VMOVDQA X1, X9
	ADDQ    $16, DI
	SUBQ    $16, DX
	JMP     single

decrypted:
	RET
