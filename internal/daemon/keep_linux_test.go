package daemon

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/fdstore"
	"oxpd/internal/fdstore/fdtest"
)

// openStore is a store of a manager that keeps so many descriptors.
func openStore(t *testing.T, most int) (*fdstore.Store, *fdtest.Manager) {
	t.Helper()
	m, err := fdtest.New(t.TempDir(), most)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	t.Setenv("NOTIFY_SOCKET", m.Path())
	t.Setenv("FDSTORE", strconv.Itoa(most))
	s := fdstore.Open()
	require.Empty(t, s.Why())
	return s, m
}

// cardOnPaper is a card with two descriptors.
type cardOnPaper struct {
	fd    int
	fail  error
	keeps bool
	lasts bool
}

func (c *cardOnPaper) Stays() []string {
	if !c.lasts {
		return nil
	}
	return []string{"card one", "card two"}
}

func (c *cardOnPaper) SetKeeps(keeps bool) { c.keeps = keeps }

func (c *cardOnPaper) Keep(put func(string, int) error) error {
	if c.fail != nil {
		return c.fail
	}
	return errors.Join(put("card one", c.fd), put("card two", c.fd))
}

func noLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func someFile(t *testing.T) int {
	t.Helper()
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

func TestKeeperKeepsAllOrNothing(t *testing.T) {
	p, q := board.ByIndex(0), board.ByIndex(8)
	for _, tc := range []struct {
		name string
		most int
		fail error
		why  string
		left []string
	}{
		{"all", 5, nil, "", []string{"state", "card one", "card two", "tap oxp1", "tap oxp9"}},
		{"no room for an interface", 4, nil, "keep oxp9", nil},
		{"no room for the card", 2, nil, "keep the card", nil},
		{"a card that cannot be kept", 5, errors.New("no hands"), "keep the card: no hands", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store, m := openStore(t, tc.most)
			log := &bytes.Buffer{}
			k, err := newKeeper(store, slog.New(slog.NewTextHandler(log, nil)))
			require.NoError(t, err)
			assert.Equal(t, 1, k.lives())
			c := &cardOnPaper{fd: someFile(t), fail: tc.fail}
			k.keepCard(c)
			k.keepPort(p, 7, c.fd)
			k.keepPort(q, 8, c.fd)
			require.NoError(t, k.settle())
			assert.Equal(t, tc.left, m.Names())
			assert.Contains(t, k.why(), tc.why)
			assert.Equal(t, tc.why == "", c.keeps, "memory outlives the process only with the descriptors")
			assert.Equal(t, tc.why != "", log.Len() > 0, "it is said")
			assert.Zero(t, m.Refused())
			k.dropPort(p)
			require.NoError(t, k.settle())
			assert.NotContains(t, m.Names(), "tap oxp1")
			require.NoError(t, k.end())
			assert.Empty(t, m.Names())
			assert.False(t, c.keeps)
		})
	}
}

// A card whose last descriptor must not be closed stays, whatever becomes of the rest.
func TestKeeperLeavesACardThatLasts(t *testing.T) {
	card := []string{"card one", "card two"}
	for _, tc := range []struct {
		name string
		most int
		end  func(k *keeper, fd int)
	}{
		{"no room for an interface", 3, func(k *keeper, fd int) { k.keepPort(board.ByIndex(0), 7, fd) }},
		{"an end that was asked for", 4, func(k *keeper, fd int) {
			k.keepPort(board.ByIndex(0), 7, fd)
			assert.NoError(t, k.end())
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store, m := openStore(t, tc.most)
			k, err := newKeeper(store, noLog())
			require.NoError(t, err)
			c := &cardOnPaper{fd: someFile(t), lasts: true}
			k.keepCard(c)
			tc.end(k, c.fd)
			require.NoError(t, k.settle())
			assert.Equal(t, card, m.Names())
			assert.True(t, c.keeps, "its memory is there for the next process")
			assert.NotEmpty(t, k.why())
		})
	}
}

func TestKeeperWithoutAStore(t *testing.T) {
	k, err := newKeeper(nil, noLog())
	require.NoError(t, err)
	c := &cardOnPaper{}
	k.keepCard(c)
	k.keepPort(board.ByIndex(0), 7, 0)
	k.notePort(board.ByIndex(0), portRecord{Up: true})
	k.dropPort(board.ByIndex(0))
	_, _, ok := k.takePort(board.ByIndex(0))
	assert.False(t, ok)
	assert.False(t, c.keeps)
	assert.NoError(t, k.end())
	assert.NotEmpty(t, k.why())
	assert.Zero(t, k.lives())
}

// A record goes from process to process; here the file does.
func TestKeeperRecord(t *testing.T) {
	store, _ := openStore(t, 4)
	k, err := newKeeper(store, noLog())
	require.NoError(t, err)
	p := board.ByIndex(3)
	k.notePort(p, portRecord{Own: "00:11:22:33:44:55", Up: true, Settings: "9000"})
	k.keepPort(p, 42, someFile(t))
	next := &keeper{store: store, log: k.log}
	require.NoError(t, next.load(blobFD(t, k)))
	assert.Equal(t, k.rec, next.rec)
	assert.Equal(t, portRecord{Index: 42, Own: "00:11:22:33:44:55", Up: true, Settings: "9000"}, next.rec.Ports["oxp4"])
	k.notePort(p, portRecord{Own: "00:11:22:33:44:55"})
	require.NoError(t, next.load(blobFD(t, k)))
	assert.Equal(t, portRecord{Index: 42, Own: "00:11:22:33:44:55"}, next.rec.Ports["oxp4"])

	require.NoError(t, k.useCard("0000:01:00.0"))
	require.NoError(t, next.load(blobFD(t, k)))
	for name, tc := range map[string]struct {
		kept, asked string
		refused     bool
	}{
		"the same":                           {"0000:01:00.0", "0000:01:00.0", false},
		"another":                            {"0000:01:00.0", "0000:02:00.0", true},
		"another way to it":                  {"vfio-user:/run/card", "0000:01:00.0", true},
		"of a program that did not write it": {"", "0000:01:00.0", false},
		"asked for by no name":               {"0000:01:00.0", "", false},
	} {
		t.Run("a card: "+name, func(t *testing.T) {
			require.Equal(t, "0000:01:00.0", next.rec.Card)
			later := &keeper{store: store, log: k.log, rec: record{Card: tc.kept}}
			err := later.useCard(tc.asked)
			if !tc.refused {
				require.NoError(t, err)
				assert.Contains(t, []string{tc.kept, tc.asked}, later.rec.Card)
				assert.NotEmpty(t, later.rec.Card)
				return
			}
			var other *OtherCardError
			require.ErrorAs(t, err, &other)
			assert.ErrorContains(t, err, tc.kept)
			assert.ErrorContains(t, err, tc.asked)
			assert.Contains(t, other.Hint(), "put device: "+tc.kept+" back")
			assert.Equal(t, tc.kept, later.rec.Card)
			assert.True(t, Final(err))
		})
	}

	for name, tc := range map[string]struct{ data, want string }{
		"nothing written":                   {"", ""},
		"a later version":                   {`{"version": 2}`, "is of version 2, and this program reads version 1"},
		"a later version, of another shape": {`{"ports": [], "version": 2}`, "is of version 2, and this program reads version 1"},
		"this version, of another shape":    {`{"ports": [], "version": 1}`, "the record: "},
		"without a version":                 {`{"ports": {}}`, "is of version 0, and this program reads version 1"},
		"no record at all":                  {`[]`, "the record: "},
		"without ports":                     {`{"version": 1}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			blob, fd, err := fdstore.NewBlob()
			require.NoError(t, err)
			if tc.data != "" {
				require.NoError(t, blob.Save([]byte(tc.data)))
			}
			later := &keeper{store: store, log: k.log, rec: record{Version: recordVersion, Ports: map[string]portRecord{}}}
			err = later.load(fd)
			if tc.want != "" {
				assert.ErrorContains(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			later.notePort(p, portRecord{Up: true})
		})
	}
}

// blobFD is a keeper's record as the next process gets it.
func blobFD(t *testing.T, k *keeper) int {
	t.Helper()
	blob, fd, err := fdstore.NewBlob()
	require.NoError(t, err)
	again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	require.NoError(t, err)
	k.blob = blob
	k.save()
	return again
}
