#include "textflag.h"

// reverse reverses the bytes of a register: SHA1RNDS4 wants the first word of four at the top.
DATA reverse<>+0(SB)/8, $0x08090a0b0c0d0e0f
DATA reverse<>+8(SB)/8, $0x0001020304050607
GLOBL reverse<>(SB), RODATA|NOPTR, $16

// ROUNDS is four rounds with the words in m0, by the function and constant k. It prepares words of
// later rounds in the other three. e has the working variable E on entry, f has it for the next four
// rounds.
#define ROUNDS(k, e, f, m0, m1, m2, m3) \
	SHA1NEXTE m0, e     \
	MOVO      X0, f     \
	SHA1MSG2  m0, m1    \
	SHA1RNDS4 $k, e, X0 \
	SHA1MSG1  m0, m3    \
	PXOR      m0, m2

// func hashBlocks(digest *[20]byte, p *byte, n int)
//
// X0 has the working variables A to D, X1 and X2 take turns to have E, X3 to X6 have 16 words of the
// message schedule, X8 and X9 have the digest before the block (FIPS 180-4 section 6.1).
TEXT ·hashBlocks(SB), NOSPLIT, $0-24
	MOVQ   digest+0(FP), DI
	MOVQ   p+8(FP), SI
	MOVQ   n+16(FP), DX
	MOVOU  reverse<>(SB), X7
	MOVOU  (DI), X0
	PSHUFB X7, X0
	MOVL   16(DI), AX
	BSWAPL AX
	PXOR   X1, X1
	PINSRD $3, AX, X1

block:
	MOVO   X0, X8
	MOVO   X1, X9
	MOVOU  0(SI), X3
	MOVOU  16(SI), X4
	MOVOU  32(SI), X5
	MOVOU  48(SI), X6
	PSHUFB X7, X3
	PSHUFB X7, X4
	PSHUFB X7, X5
	PSHUFB X7, X6

	PADDD     X3, X1
	MOVO      X0, X2
	SHA1RNDS4 $0, X1, X0

	SHA1NEXTE X4, X2
	MOVO      X0, X1
	SHA1RNDS4 $0, X2, X0
	SHA1MSG1  X4, X3

	SHA1NEXTE X5, X1
	MOVO      X0, X2
	SHA1RNDS4 $0, X1, X0
	SHA1MSG1  X5, X4
	PXOR      X5, X3

	ROUNDS(0, X2, X1, X6, X3, X4, X5)
	ROUNDS(0, X1, X2, X3, X4, X5, X6)
	ROUNDS(1, X2, X1, X4, X5, X6, X3)
	ROUNDS(1, X1, X2, X5, X6, X3, X4)
	ROUNDS(1, X2, X1, X6, X3, X4, X5)
	ROUNDS(1, X1, X2, X3, X4, X5, X6)
	ROUNDS(1, X2, X1, X4, X5, X6, X3)
	ROUNDS(2, X1, X2, X5, X6, X3, X4)
	ROUNDS(2, X2, X1, X6, X3, X4, X5)
	ROUNDS(2, X1, X2, X3, X4, X5, X6)
	ROUNDS(2, X2, X1, X4, X5, X6, X3)
	ROUNDS(2, X1, X2, X5, X6, X3, X4)
	ROUNDS(3, X2, X1, X6, X3, X4, X5)
	ROUNDS(3, X1, X2, X3, X4, X5, X6)
	ROUNDS(3, X2, X1, X4, X5, X6, X3)
	ROUNDS(3, X1, X2, X5, X6, X3, X4)

	SHA1NEXTE X6, X2
	MOVO      X0, X1
	SHA1RNDS4 $3, X2, X0

	SHA1NEXTE X9, X1
	PADDD     X8, X0
	ADDQ      $64, SI
	SUBQ      $64, DX
	JNE       block

	PSHUFB X7, X0
	MOVOU  X0, (DI)
	PEXTRD $3, X1, AX
	BSWAPL AX
	MOVL   AX, 16(DI)
	RET

// func cpuid7() (ebx uint32)
TEXT ·cpuid7(SB), NOSPLIT, $0-4
	MOVL $0, AX
	CPUID
	CMPL AX, $7
	JLT  none
	MOVL $7, AX
	MOVL $0, CX
	CPUID
	MOVL BX, ebx+0(FP)
	RET

none:
	MOVL $0, ebx+0(FP)
	RET
