#include "textflag.h"

// func Barrier()
TEXT ·Barrier(SB), NOSPLIT, $0-0
	DMB $0x3 // OSH
	RET
