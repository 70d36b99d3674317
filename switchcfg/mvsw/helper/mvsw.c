// mvsw runs MDIO operations on the coprocessor, for the 88E6193X switch behind
// ten of the front ports (hardware/switch.md). The text protocol is that of
// switch.md 8.1: everything goes to standard output, and the exit status is
// 0 for done, 1 for a failed access or an unknown command, 2 for arguments that
// cannot be. Unlike the original, a number that does not parse or does not fit
// is refused, and nothing is touched.
//
// It is one file without a library: the system has no compiler, and the file
// crosses a serial line. Nothing is kept in memory that a program would have to
// be started with (no .data, no .bss), so it is one segment. Built by ./build.

typedef unsigned short u16;
typedef unsigned long word;

// ---- the system ----

#if defined(__aarch64__)
enum { SYS_openat = 56, SYS_read = 63, SYS_write = 64, SYS_exit_group = 94 };

__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x30, #0\n\tmov x0, sp\n\tb begin\n");

static long system_call(long number, long a, long b, long c)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
	return x0;
}
#elif defined(__x86_64__) // for the tests
enum { SYS_openat = 257, SYS_read = 0, SYS_write = 1, SYS_exit_group = 231 };

__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n");

static long system_call(long number, long a, long b, long c)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}
#else
#error "for aarch64, and for x86-64 in the tests"
#endif

enum { AT_FDCWD = -100, O_RDWR = 2, STDOUT = 1 };

// ---- output, in one piece where it fits: a kernel message may fall between two ----

struct out {
	unsigned used;
	int broken; // standard output does not take it
	char text[1024];
};

static void flush(struct out *o)
{
	unsigned done = 0;
	while (done < o->used && !o->broken) {
		long n = system_call(SYS_write, STDOUT, (long)(o->text + done), o->used - done);
		if (n <= 0)
			o->broken = 1;
		else
			done += n;
	}
	o->used = 0;
}

static void put_char(struct out *o, char c)
{
	if (o->used == sizeof o->text)
		flush(o);
	o->text[o->used++] = c;
}

static void put_text(struct out *o, const char *s)
{
	while (*s)
		put_char(o, *s++);
}

static void put_decimal(struct out *o, unsigned v)
{
	if (v >= 10)
		put_decimal(o, v / 10);
	put_char(o, '0' + v % 10);
}

// put_hex writes 0x and four lowercase digits.
static void put_hex(struct out *o, unsigned v)
{
	put_text(o, "0x");
	for (int shift = 12; shift >= 0; shift -= 4)
		put_char(o, "0123456789abcdef"[v >> shift & 15]);
}

// ---- one MDIO transaction: the device takes the request in the buffer, of read() too ----

struct request { // switch.md 3
	int bus;
	int phy;
	int reg;
	u16 data;
	u16 padding;
};

struct chip {
	long fd;
	int bus;
	int phy;
};

enum error {
	DONE,
	READ_FAILED,
	WRITE_FAILED,
	READS_DIFFER,
	STAYED_BUSY,
	NOTHING_ANSWERS,
	PHY_STAYED_BUSY,
};

// transact returns whether the driver did it: published sources return 0, the
// appliance's module the size of the request.
static int transact(const struct chip *c, long call, int reg, u16 *data)
{
	struct request r;
	r.bus = c->bus;
	r.phy = c->phy;
	r.reg = reg;
	r.data = *data;
	r.padding = 0;
	long n = system_call(call, c->fd, (long)&r, sizeof r);
	if (n != 0 && n != sizeof r)
		return 0;
	*data = r.data;
	return 1;
}

// ---- the chip's two registers at its address (switch.md 2) ----

enum {
	SMI_COMMAND = 0,
	SMI_DATA = 1,

	BUSY = 1 << 15,
	CLAUSE_22 = 1 << 12,
	OP_WRITE = 1 << 10,
	OP_READ = 2 << 10,

	POLLS = 1000, // looks at a busy bit: 25 ms at least, each is an MDIO transaction
	TRIES = 3,    // pairs of reads that must agree

	GLOBAL2 = 0x1c,
	SMI_PHY_COMMAND = 0x18,
	SMI_PHY_DATA = 0x19,

	C45_ADDRESS = 0,
	C45_WRITE = 1 << 10,
	C45_READ = 3 << 10,
};

// settle waits for the switch's busy bit. A chip that does not answer reads all-ones,
// which looks like busy.
static enum error settle(const struct chip *c)
{
	u16 all = 0xffff;
	for (int i = 0; i < POLLS; i++) {
		u16 v = 0;
		if (!transact(c, SYS_read, SMI_COMMAND, &v))
			return READ_FAILED;
		if (!(v & BUSY))
			return DONE;
		all &= v;
	}
	return all == 0xffff ? NOTHING_ANSWERS : STAYED_BUSY;
}

static enum error command(const struct chip *c, unsigned op, unsigned dev, unsigned reg)
{
	u16 v = BUSY | CLAUSE_22 | op | dev << 5 | reg;
	if (!transact(c, SYS_write, SMI_COMMAND, &v))
		return WRITE_FAILED;
	return settle(c);
}

static enum error switch_read(const struct chip *c, unsigned dev, unsigned reg, u16 *v)
{
	enum error e = settle(c);
	if (!e)
		e = command(c, OP_READ, dev, reg);
	if (!e && !transact(c, SYS_read, SMI_DATA, v))
		e = READ_FAILED;
	return e;
}

static enum error switch_write(const struct chip *c, unsigned dev, unsigned reg, u16 v)
{
	enum error e = settle(c);
	if (!e && !transact(c, SYS_write, SMI_DATA, &v))
		e = WRITE_FAILED;
	return e ? e : command(c, OP_WRITE, dev, reg);
}

// ---- PHYs and SERDES, by two registers of Global2 with a busy bit of their own (switch.md 7) ----

static enum error phy_settle(const struct chip *c)
{
	for (int i = 0; i < POLLS; i++) {
		u16 v;
		enum error e = switch_read(c, GLOBAL2, SMI_PHY_COMMAND, &v);
		if (e || !(v & BUSY))
			return e;
	}
	return PHY_STAYED_BUSY;
}

static enum error phy_command(const struct chip *c, unsigned op, unsigned phy, unsigned reg)
{
	enum error e = switch_write(c, GLOBAL2, SMI_PHY_COMMAND, BUSY | op | phy << 5 | reg);
	return e ? e : phy_settle(c);
}

static enum error phy_data(const struct chip *c, u16 v)
{
	enum error e = phy_settle(c);
	return e ? e : switch_write(c, GLOBAL2, SMI_PHY_DATA, v);
}

// ---- places: whatever has an address and sixteen bits ----

enum kind { SWITCH, PHY, SERDES };

struct place {
	enum kind kind;
	unsigned dev; // switch device, PHY or port
	unsigned mmd; // of a SERDES
	unsigned reg;
};

// address selects the register of a SERDES.
static enum error address(const struct chip *c, const struct place *p)
{
	enum error e = phy_data(c, p->reg);
	return e ? e : phy_command(c, C45_ADDRESS, p->dev, p->mmd);
}

static enum error get(const struct chip *c, const struct place *p, u16 *v)
{
	enum error e;
	if (p->kind == SWITCH)
		return switch_read(c, p->dev, p->reg, v);
	if (p->kind == PHY) {
		e = phy_settle(c);
		if (!e)
			e = phy_command(c, CLAUSE_22 | OP_READ, p->dev, p->reg);
	} else {
		e = address(c, p);
		if (!e)
			e = phy_command(c, C45_READ, p->dev, p->mmd);
	}
	return e ? e : switch_read(c, GLOBAL2, SMI_PHY_DATA, v);
}

static enum error put(const struct chip *c, const struct place *p, u16 v)
{
	if (p->kind == SWITCH)
		return switch_write(c, p->dev, p->reg, v);
	enum error e = p->kind == SERDES ? address(c, p) : DONE;
	if (!e)
		e = phy_data(c, v);
	if (e)
		return e;
	if (p->kind == PHY)
		return phy_command(c, CLAUSE_22 | OP_WRITE, p->dev, p->reg);
	return phy_command(c, C45_WRITE, p->dev, p->mmd);
}

// steady reads what will be written back: two reads in a row that agree, because
// somebody else's command may fall between ours.
static enum error steady(const struct chip *c, const struct place *p, u16 *v)
{
	for (int i = 0; i < TRIES; i++) {
		u16 again;
		enum error e = get(c, p, v);
		if (!e)
			e = get(c, p, &again);
		if (e || *v == again)
			return e;
	}
	return READS_DIFFER;
}

static enum error change(const struct chip *c, const struct place *p, unsigned clear, unsigned set)
{
	u16 v;
	enum error e = steady(c, p, &v);
	return e ? e : put(c, p, (v & ~clear) | set);
}

// ---- paged PHY registers: the page is put back, whatever happened ----

enum { PAGE = 22 };

enum action { READ, WRITE, CHANGE };

// paged works on one PHY register: v is what was read or is written, or, of a
// change, the bits that are set; clear are the bits that it clears.
static enum error paged(const struct chip *c, enum action action, unsigned phy, unsigned page, unsigned reg, u16 *v, unsigned clear)
{
	struct place at = {PHY, phy, 0, PAGE};
	struct place register_ = {PHY, phy, 0, reg};
	u16 before;
	enum error e = steady(c, &at, &before);
	if (e)
		return e;
	e = put(c, &at, page);
	if (!e && action == READ)
		e = get(c, &register_, v);
	if (!e && action == WRITE)
		e = put(c, &register_, *v);
	if (!e && action == CHANGE)
		e = change(c, &register_, clear, *v);
	enum error back = put(c, &at, before);
	return e ? e : back;
}

// ---- commands ----

enum {
	PORTS = 11,
	PORT_STATUS = 0,
	IDENTIFIER = 3,
	PORT_CONTROL = 4,
	VLAN_MAP = 6,

	STATE = 3, // Port Control bits 1:0, 3 forwarding
	LINK = 1 << 11,
	PHY_OFF = 1 << 11,

	PANEL_CONTROL = 0x007f,
	SERDES_MMD = 4,
};

static enum error serdes(const struct chip *c, unsigned port, unsigned reg, unsigned clear, unsigned set)
{
	struct place p = {SERDES, port, SERDES_MMD, reg};
	return change(c, &p, clear, set);
}

static enum error copper(const struct chip *c, unsigned port, int up)
{
	struct place control = {SWITCH, port, 0, PORT_CONTROL};
	u16 set = up ? 0 : PHY_OFF;
	enum error e = change(c, &control, STATE, up ? STATE : 0);
	return e ? e : paged(c, CHANGE, port, 0, 0, &set, PHY_OFF);
}

static enum error cage_wake(const struct chip *c, unsigned port)
{
	enum error e = serdes(c, port, 0xf002, 1 << 5, 1 << 15);
	if (!e)
		e = serdes(c, port, 0xf003, 3 << 8, 0);
	if (!e)
		e = serdes(c, port, 0x2000, 1 << 11, 0);
	return e ? e : switch_write(c, port, PORT_CONTROL, PANEL_CONTROL);
}

static enum error cage_sleep(const struct chip *c, unsigned port)
{
	enum error e = serdes(c, port, 0xf002, 0, 1 << 15 | 1 << 5);
	if (!e)
		e = serdes(c, port, 0xf003, 0, 3 << 8);
	return e ? e : serdes(c, port, 0x2000, 0, 1 << 11);
}

static int is_copper(unsigned port) { return port >= 1 && port <= 8; }
static int is_cage(unsigned port) { return port == 9 || port == 10; }

// row prints a port, or nothing when a read of it fails. PHY register 0 is read
// of the ports that have a PHY; the page register of what may stand at the other
// addresses is left alone.
static void row(const struct chip *c, struct out *o, unsigned port)
{
	u16 control, status, map, phy = 0;
	if (switch_read(c, port, PORT_CONTROL, &control) || switch_read(c, port, PORT_STATUS, &status) ||
	    switch_read(c, port, VLAN_MAP, &map) || (is_copper(port) && paged(c, READ, port, 0, 0, &phy, 0)))
		return;
	put_text(o, "  ");
	put_decimal(o, port);
	put_text(o, port < 10 ? "    " : "   ");
	u16 words[] = {control, status, map, phy};
	for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
		put_hex(o, words[i]);
		put_text(o, "   ");
	}
	put_text(o, (control & STATE) == STATE ? "forwarding" : control & 2 ? "learning" : control & 1 ? "blocking" : "disabled");
	put_text(o, status & LINK ? ", link" : ", no link");
	put_text(o, phy & PHY_OFF ? ", phy off\n" : "\n");
}

// name packs a word of up to seven letters into a number, so that commands are
// compared and switched on without a table of pointers.
#define NAME(a, b, c, d, e) ((word)(a) | (word)(b) << 8 | (word)(c) << 16 | (word)(d) << 24 | (word)(e) << 32)

static word name(const char *s)
{
	word v = 0;
	for (unsigned i = 0; s[i]; i++) {
		if (i == sizeof v - 1)
			return 0;
		v |= (word)(unsigned char)s[i] << 8 * i;
	}
	return v;
}

// number parses decimal, or hexadecimal with 0x, up to max.
static int number(const char *s, unsigned max, unsigned *v)
{
	unsigned base = 10;
	if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) {
		base = 16;
		s += 2;
	}
	if (!*s)
		return 0;
	for (*v = 0; *s; s++) {
		unsigned digit = base;
		if (*s >= '0' && *s <= '9')
			digit = *s - '0';
		else if ((*s | 0x20) >= 'a' && (*s | 0x20) <= 'f')
			digit = (*s | 0x20) - 'a' + 10;
		if (digit >= base)
			return 0;
		*v = *v * base + digit;
		if (*v > max)
			return 0;
	}
	return 1;
}

static void report(struct out *o, const struct chip *c, enum error e)
{
	switch (e) {
	case DONE:
		return;
	case READ_FAILED:
		put_text(o, "mdio read failed");
		break;
	case WRITE_FAILED:
		put_text(o, "mdio write failed");
		break;
	case READS_DIFFER:
		put_text(o, "mdio read failed: two reads in a row differ");
		break;
	case STAYED_BUSY:
		put_text(o, "switch command register stayed busy");
		break;
	case NOTHING_ANSWERS:
		put_text(o, "switch command register stayed busy: nothing answers at bus ");
		put_decimal(o, c->bus);
		put_text(o, " address ");
		put_decimal(o, c->phy);
		break;
	case PHY_STAYED_BUSY:
		put_text(o, "SMI PHY command register stayed busy");
		break;
	}
	put_char(o, '\n');
}

enum { STATUS_DONE, STATUS_FAILED, STATUS_USAGE };

static int usage(struct out *o, int status)
{
	put_text(o, "usage: mvsw BUS SMI COMMAND; numbers decimal, or hexadecimal with 0x\n"
		    "  id | read DEV REG | write DEV REG VALUE | dump [FIRST LAST]\n"
		    "  phyr PHY PAGE REG | phyw PHY PAGE REG VALUE | c45r PORT MMD REG | c45w PORT MMD REG VALUE\n"
		    "  up PORT | down PORT (1 to 8) | sup PORT | sdown PORT (9, 10)\n");
	return status;
}

#define ID NAME('i', 'd', 0, 0, 0)
#define READ_ NAME('r', 'e', 'a', 'd', 0)
#define WRITE_ NAME('w', 'r', 'i', 't', 'e')
#define PHYR NAME('p', 'h', 'y', 'r', 0)
#define PHYW NAME('p', 'h', 'y', 'w', 0)
#define C45R NAME('c', '4', '5', 'r', 0)
#define C45W NAME('c', '4', '5', 'w', 0)
#define UP NAME('u', 'p', 0, 0, 0)
#define DOWN NAME('d', 'o', 'w', 'n', 0)
#define SUP NAME('s', 'u', 'p', 0, 0)
#define SDOWN NAME('s', 'd', 'o', 'w', 'n')
#define DUMP NAME('d', 'u', 'm', 'p', 0)

enum { FIVE_BITS = 0x1f, BYTE = 0xff, SIXTEEN_BITS = 0xffff, MAX_ARGS = 4 };

// shape says how many arguments a command takes and the largest value of each;
// -1 for an unknown command.
static int shape(word cmd, unsigned max[MAX_ARGS])
{
	for (unsigned i = 0; i < MAX_ARGS; i++)
		max[i] = FIVE_BITS;
	max[3] = SIXTEEN_BITS;
	switch (cmd) {
	case ID:
		return 0;
	case READ_:
		return 2;
	case WRITE_:
		max[2] = SIXTEEN_BITS;
		return 3;
	case PHYR:
	case PHYW:
		max[1] = BYTE;
		return cmd == PHYR ? 3 : 4;
	case C45R:
	case C45W:
		max[2] = SIXTEEN_BITS;
		return cmd == C45R ? 3 : 4;
	case UP:
	case DOWN:
	case SUP:
	case SDOWN:
		max[0] = PORTS - 1;
		return 1;
	case DUMP:
		max[0] = max[1] = PORTS - 1;
		return 2;
	}
	return -1;
}

// fits says whether a port has what the command works on. The uplink has neither:
// cage_wake would take its DSA tags away.
static int fits(word cmd, const unsigned *a)
{
	switch (cmd) {
	case UP:
	case DOWN:
		return is_copper(a[0]);
	case SUP:
	case SDOWN:
		return is_cage(a[0]);
	case DUMP:
		return a[0] <= a[1];
	}
	return 1;
}

static int run(const struct chip *c, struct out *o, word cmd, const unsigned *a)
{
	enum error e = DONE;
	u16 v = 0;
	switch (cmd) {
	case ID:
		e = switch_read(c, 0, IDENTIFIER, &v);
		break;
	case READ_:
		e = switch_read(c, a[0], a[1], &v);
		break;
	case WRITE_:
		e = switch_write(c, a[0], a[1], a[2]);
		break;
	case PHYR:
		e = paged(c, READ, a[0], a[1], a[2], &v, 0);
		break;
	case PHYW:
		v = a[3];
		e = paged(c, WRITE, a[0], a[1], a[2], &v, 0);
		break;
	case C45R:
	case C45W: {
		struct place p = {SERDES, a[0], a[1], a[2]};
		e = cmd == C45R ? get(c, &p, &v) : put(c, &p, a[3]);
		break;
	}
	case UP:
	case DOWN:
		e = copper(c, a[0], cmd == UP);
		break;
	case SUP:
		e = cage_wake(c, a[0]);
		break;
	case SDOWN:
		e = cage_sleep(c, a[0]);
		break;
	case DUMP:
		put_text(o, "port  control  status   vlanmap  phy0     state\n");
		for (unsigned port = a[0]; port <= a[1]; port++)
			row(c, o, port);
		break;
	}
	if (e) {
		report(o, c, e);
		return STATUS_FAILED;
	}
	if (cmd == ID) {
		put_text(o, "switch id ");
		put_hex(o, v);
		put_text(o, " - device ");
		put_hex(o, v >> 4);
		put_text(o, " revision ");
		put_decimal(o, v & 15);
		put_char(o, '\n');
	} else if (cmd == READ_ || cmd == PHYR || cmd == C45R) {
		put_hex(o, v);
		put_char(o, '\n');
	}
	return STATUS_DONE;
}

// serve is the program without its end: arguments are those after the name.
static int serve(struct out *o, long count, char **argument)
{
	unsigned bus, phy, max[MAX_ARGS], a[MAX_ARGS] = {0, PORTS - 1, 0, 0};
	if (count < 3 || !number(argument[0], 7, &bus) || !number(argument[1], FIVE_BITS, &phy))
		return usage(o, STATUS_USAGE);
	word cmd = name(argument[2]);
	int wanted = shape(cmd, max);
	if (wanted < 0)
		return usage(o, STATUS_FAILED);
	count -= 3;
	argument += 3;
	if (cmd == DUMP && count == 0)
		wanted = 0;
	if (count != wanted)
		return usage(o, STATUS_USAGE);
	for (long i = 0; i < count; i++)
		if (!number(argument[i], max[i], &a[i]))
			return usage(o, STATUS_USAGE);
	if (!fits(cmd, a))
		return usage(o, STATUS_USAGE);

	struct chip c = {0, bus, phy};
	c.fd = system_call(SYS_openat, AT_FDCWD, (long)"/dev/mvmdio-uio", O_RDWR);
	if (c.fd < 0) {
		put_text(o, "cannot open /dev/mvmdio-uio\n");
		return STATUS_FAILED;
	}
	return run(&c, o, cmd, a);
}

// begin is given the stack as the kernel left it: the number of arguments, then
// their addresses.
__attribute__((noreturn, used)) void begin(long *stack)
{
	struct out o;
	o.used = 0;
	o.broken = 0;
	int status = serve(&o, stack[0] - 1, (char **)(stack + 2));
	flush(&o);
	for (;;)
		system_call(SYS_exit_group, o.broken ? STATUS_FAILED : status, 0, 0);
}
