package loadtest

import (
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oxpd/internal/netlab"
)

// xtables is the program that the kernel's own filter is set by. nft does not do in every
// kernel that has xt.
const xtables = "iptables-legacy"

// xt is the table raw of the kernel's filter in a namespace: its PREROUTING is the first
// place behind an interface that a rule of the host can be at.
type xt struct {
	t  *testing.T
	ns *netlab.NS
}

func newXT(t *testing.T, ns *netlab.NS) xt {
	t.Helper()
	if _, err := exec.LookPath(xtables); err != nil {
		t.Skipf("needs %s: apt-get install iptables", xtables)
	}
	return xt{t, ns}
}

func (x xt) run(args ...string) string {
	x.t.Helper()
	cmd := exec.Command(xtables, append([]string{"-w", "-t", "raw"}, args...)...)
	var out []byte
	err := x.ns.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	require.NoError(x.t, err, "%v: %s", cmd.Args, out)
	return string(out)
}

// drop adds a rule.
func (x xt) drop(from netip.Addr) {
	x.t.Helper()
	x.run("-A", "PREROUTING", "-s", from.String(), "-j", "DROP")
}

// clear takes all rules out.
func (x xt) clear() {
	x.t.Helper()
	x.run("-F", "PREROUTING")
}

// dropped is how many frames the one rule has dropped.
func (x xt) dropped() uint64 {
	x.t.Helper()
	n, ok := xtPackets(x.run("-nvxL", "PREROUTING"))
	require.True(x.t, ok, "the counters of one rule")
	return n
}

// xtPackets finds the packets of the one rule with the target DROP in a list.
func xtPackets(list string) (packets uint64, ok bool) {
	for _, line := range strings.Split(list, "\n") {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "DROP" {
			continue
		}
		if ok {
			return 0, false
		}
		n, err := strconv.ParseUint(f[0], 10, 64)
		if err != nil {
			return 0, false
		}
		packets, ok = n, true
	}
	return packets, ok
}

func TestXTPackets(t *testing.T) {
	const head = "Chain PREROUTING (policy ACCEPT 17 packets, 3000 bytes)\n" +
		"    pkts      bytes target     prot opt in     out     source               destination\n"
	const rule = "   12345   790080 DROP       0    --  *      *       10.66.200.2          0.0.0.0/0\n"
	for _, tc := range []struct {
		name, list string
		want       uint64
		ok         bool
	}{
		{"one rule", head + rule, 12345, true},
		{"none", head, 0, false},
		{"two", head + rule + rule, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, ok := xtPackets(tc.list)
			require.Equal(t, tc.ok, ok)
			require.Equal(t, tc.want, n)
		})
	}
}
