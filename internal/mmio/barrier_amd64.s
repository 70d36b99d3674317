#include "textflag.h"

// func Barrier()
TEXT ·Barrier(SB), NOSPLIT, $8-0
	LOCK
	ADDL $0, 0(SP)
	RET
