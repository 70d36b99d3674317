package console

// What the coprocessor says. None of it is on a record: it is of the kind that such
// boards print, so that a reader meets lines with colons, hashes and dollars in them.
const (
	loaderText = "\r\n\r\nBoot loader of the coprocessor (simulated)\r\n" +
		"DRAM:  4 GiB\r\nMMC:   mmc@0: 0\r\nIn:    serial\r\nOut:   serial\r\nErr:   serial\r\n" +
		"Hit any key to stop autoboot:  1 \b\b\b 0 \r\n"
	stoppedText = "\r\nloader> "
	kernelText  = "Starting kernel ...\r\n\r\n" +
		"[    0.000000] Booting Linux on physical CPU 0x0\r\n" +
		"[    0.000000] Linux version 4.14.207 (aarch64)\r\n" +
		"[    0.000000] Kernel command line: console=ttyAMA0,115200n8 root=/dev/ram0\r\n" +
		"[    1.204310] mvmdio_uio: registered /dev/mvmdio-uio\r\n" +
		"[    1.871002] octeontx-ep: barmap published\r\n"
	noiseText = "[  417.003172] octeontx-ep: # irq 155: nobody cared\r\n"

	issueText    = "\r\n\r\nWelcome to the coprocessor (simulated)\r\n\r\n"
	loginText    = "octeon login: "
	passwordText = "Password: "
	refusedText  = "\r\nLogin incorrect\r\n"
)

const (
	user   = "root"
	prompt = `root@octeon:\w\$ `
)
