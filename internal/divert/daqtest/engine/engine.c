/*
 * engine MODULES WIRE HOST SNAPLEN BUFFER_MB BLOCK CHANGE
 *
 * An inline engine as others build them: it has libdaq 2 load its module
 * afpacket from the folder MODULES, and bridge the interfaces WIRE and HOST.
 *
 * UDP over IPv4 to port BLOCK is blocked; to port CHANGE the first byte of the
 * payload is inverted, and the UDP checksum cleared; all else passes as it
 * came. A port of 0 is none.
 *
 * It prints "ready" when frames go through it. SIGINT or SIGTERM ends it, and
 * it prints what it counted, one "name value" a line. What is wrong goes to
 * standard error, exit 1.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <daq.h>
#include <daq_api.h>

enum {
	TIMEOUT_MS = 1000, /* of one wait for frames; signals end it at once */

	ETHER_TYPE = 12,
	ETHER_IPV4 = 0x0800,
	IP = 14, /* offset of the IPv4 header, and offsets in it */
	IP_FRAGMENT = 6,
	IP_OFFSET_MASK = 0x1fff,
	IP_PROTOCOL = 9,
	IP_SIZE = 20,
	UDP_DESTINATION = 2, /* offsets in the UDP header */
	UDP_CHECKSUM = 6,
	UDP_SIZE = 8,
};

struct rules {
	unsigned block, change;
	unsigned long long cut;
};

/* What the handler of signals stops. */
static const DAQ_Module_t *module;
static void *instance;
static volatile sig_atomic_t ending;

static void end(int signal)
{
	(void)signal;
	ending = 1;
	if (instance)
		daq_breakloop(module, instance);
}

static void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static unsigned word(const uint8_t *at)
{
	return at[0] << 8 | at[1];
}

/* udp finds the UDP header of a frame that begins one; 0 for others. */
static unsigned udp(const uint8_t *frame, unsigned bytes)
{
	unsigned at;

	if (bytes < IP + IP_SIZE || word(frame + ETHER_TYPE) != ETHER_IPV4 || frame[IP + IP_PROTOCOL] != IPPROTO_UDP)
		return 0;
	if (word(frame + IP + IP_FRAGMENT) & IP_OFFSET_MASK)
		return 0;
	at = IP + 4 * (frame[IP] & 15u);
	return at + UDP_SIZE <= bytes ? at : 0;
}

/* judge is called with each frame. DAQ_VERDICT_REPLACE sends on the ring's own
 * bytes, which the module maps writable. */
static DAQ_Verdict judge(void *user, const DAQ_PktHdr_t *header, const uint8_t *frame)
{
	struct rules *rules = user;
	unsigned at = udp(frame, header->caplen);
	unsigned port = at ? word(frame + at + UDP_DESTINATION) : 0;

	if (header->caplen < header->pktlen)
		rules->cut++;
	if (port == 0)
		return DAQ_VERDICT_PASS;
	if (port == rules->block)
		return DAQ_VERDICT_BLOCK;
	if (port == rules->change && at + UDP_SIZE < header->caplen) {
		uint8_t *header_of_udp = (uint8_t *)frame + at;

		header_of_udp[UDP_SIZE] ^= 0xff;
		memset(header_of_udp + UDP_CHECKSUM, 0, 2);
		return DAQ_VERDICT_REPLACE;
	}
	return DAQ_VERDICT_PASS;
}

static void *begin(const char *modules, const char *wire, const char *host, const char *snaplen, const char *buffer)
{
	const char *folders[] = {modules, NULL};
	char name[128], said[DAQ_ERRBUF_SIZE] = "";
	DAQ_Config_t config = {.timeout = TIMEOUT_MS, .mode = DAQ_MODE_INLINE, .flags = DAQ_CFG_PROMISC};
	void *made = NULL;

	if (daq_load_modules(folders) != 0)
		fail("load the modules of %s", modules);
	module = daq_find_module("afpacket");
	if (!module)
		fail("no module afpacket in %s", modules);
	snprintf(name, sizeof name, "%s:%s", wire, host);
	config.name = name;
	config.snaplen = atoi(snaplen);
	daq_config_set_value(&config, "buffer_size_mb", buffer);
	if (daq_initialize(module, &config, &made, said, sizeof said) != 0)
		fail("initialize afpacket: %s", said);
	if (daq_start(module, made) != 0)
		fail("start afpacket: %s", daq_get_error(module, made));
	return made;
}

static void report(const struct rules *rules)
{
	DAQ_Stats_t s;

	if (daq_get_stats(module, instance, &s) != 0)
		fail("read what afpacket counted: %s", daq_get_error(module, instance));
	printf("received %llu\n", (unsigned long long)s.packets_received);
	printf("passed %llu\n", (unsigned long long)s.verdicts[DAQ_VERDICT_PASS]);
	printf("blocked %llu\n", (unsigned long long)s.verdicts[DAQ_VERDICT_BLOCK]);
	printf("changed %llu\n", (unsigned long long)s.verdicts[DAQ_VERDICT_REPLACE]);
	printf("cut %llu\n", rules->cut);
	printf("lost %llu\n", (unsigned long long)s.hw_packets_dropped);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = end};
	struct rules rules = {0};

	if (argc != 8)
		fail("usage: engine MODULES WIRE HOST SNAPLEN BUFFER_MB BLOCK CHANGE");
	rules.block = atoi(argv[6]);
	rules.change = atoi(argv[7]);
	instance = begin(argv[1], argv[2], argv[3], argv[4], argv[5]);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	puts("ready");
	fflush(stdout);
	while (!ending)
		if (daq_acquire(module, instance, 0, judge, &rules) != 0)
			fail("acquire: %s", daq_get_error(module, instance));
	report(&rules);
	daq_stop(module, instance);
	daq_shutdown(module, instance);
	daq_unload_modules();
	return 0;
}
