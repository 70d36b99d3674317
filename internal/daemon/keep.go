package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/fdstore"
)

// Names in the service manager's store; the card's descriptors have names of their own.
const (
	keptState  = "state"
	keptPrefix = "tap "
)

// settleWait bounds, by the wall clock, the wait for a service manager that is asked
// whether it has what it was given.
const settleWait = 5 * time.Second

// keptCard is a card that a later process can go on with by its descriptors.
type keptCard interface {
	Keep(put func(name string, fd int) error) error
	SetKeeps(keeps bool)
}

// lasting is a card that must not be closed for good, not even by oxpd stop: descriptors
// with these names stay with the service manager, and its memory with them.
type lasting interface{ Stays() []string }

// recordVersion is that of the record which this program writes, and reads.
const recordVersion = 1

// record is what a later process must know and can read back from nothing else.
type record struct {
	Version int                   `json:"version"`
	Lives   int                   `json:"lives"` // processes that wrote it, this one too
	Card    string                `json:"card"`  // the device's name, "" when it is not known
	Ports   map[string]portRecord `json:"ports"` // by the interface's name in the board table
}

// portRecord is a port's part.
type portRecord struct {
	Index int    `json:"ifindex"` // of the interface in its namespace
	Own   string `json:"own"`     // the card's own address, "" when it is not known
	Up    bool   `json:"up"`      // the card's port is to be raised
	Iface string `json:"iface"`   // the interface when last looked at: up, down, "" when nobody had
	// Settings are those of the configuration that were put into force, "" while some
	// were not: only others are put into force by the next process.
	Settings string `json:"settings"`
}

// RecordError is a state that this program cannot go on from.
type RecordError struct{ Err error }

func (e *RecordError) Error() string {
	return fmt.Sprintf("read what the process before left with the service manager: %v", e.Err)
}

// Unwrap returns why.
func (e *RecordError) Unwrap() error { return e.Err }

// Hint is what an operator can do.
func (e *RecordError) Hint() string {
	return "start the version of oxpd that ran before; or give everything up: reboot the coprocessor, then systemctl clean --what=fdstore oxpd"
}

// OtherCardError is a start on another card than the one whose interfaces, and live
// rings, the process before has left.
type OtherCardError struct{ Kept, Asked string }

func (e *OtherCardError) Error() string {
	return fmt.Sprintf("start on %s: the service manager keeps the interfaces and rings of %s, which an earlier oxpd left", e.Asked, e.Kept)
}

// Hint is what an operator can do.
func (e *OtherCardError) Hint() string {
	return fmt.Sprintf("to go on with %[1]s: put device: %[1]s back, and start; to leave it: do that, then oxpd stop, and start on %[2]s; "+
		"if %[1]s is gone for good: systemctl clean --what=fdstore oxpd, which removes the interfaces", e.Kept, e.Asked)
}

// keeper is what this process leaves to the next one: descriptors and a record, both
// with the service manager. Once something cannot be left, nothing is: a restart then
// costs what it costs without a store. Safe for concurrent use.
type keeper struct {
	store *fdstore.Store
	log   *slog.Logger

	mu   sync.Mutex
	blob *fdstore.Blob
	card keptCard // nil: none was left yet
	stay []string // descriptors of a card that lasts
	rec  record
}

// newKeeper finds what the process before left. Without a store it keeps nothing.
// Error: *RecordError; then nothing has changed.
func newKeeper(store *fdstore.Store, log *slog.Logger) (*keeper, error) {
	k := &keeper{store: store, log: log, rec: record{Version: recordVersion, Ports: map[string]portRecord{}}}
	if store.Why() != "" {
		return k, nil
	}
	fd, came := store.Take(keptState)
	if !came {
		k.begin()
		return k, nil
	}
	if err := k.load(fd); err != nil {
		return nil, &RecordError{err}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rec.Lives++
	k.save()
	return k, nil
}

// useCard notes the card that this process is for. Error: *OtherCardError, when it is
// not that of the process before; then nothing has changed.
func (k *keeper) useCard(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch k.rec.Card {
	case name:
		return nil
	case "":
		k.rec.Card = name
		k.save()
		return nil
	}
	if name == "" {
		return nil
	}
	return &OtherCardError{Kept: k.rec.Card, Asked: name}
}

// begin makes an empty record.
func (k *keeper) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	blob, fd, err := fdstore.NewBlob()
	if err == nil {
		k.blob, k.rec.Lives = blob, 1
		err = k.store.Put(keptState, fd)
	}
	if err != nil {
		k.giveUp(err)
		return
	}
	k.save()
}

func (k *keeper) load(fd int) error {
	blob, err := fdstore.OpenBlob(fd)
	if err != nil {
		return err
	}
	data, err := blob.Load()
	if err != nil {
		return err
	}
	k.blob = blob
	if data == nil {
		return nil // it died before it had anything to write
	}
	var rec record
	err = json.Unmarshal(data, &rec)
	switch same := rec.Version == recordVersion; {
	case err != nil && (same || rec.Version == 0):
		return fmt.Errorf("the record: %w", err)
	case !same: // which may be why it does not fit
		return fmt.Errorf("the record is of version %d, and this program reads version %d", rec.Version, recordVersion)
	}
	if k.rec = rec; k.rec.Ports == nil {
		k.rec.Ports = map[string]portRecord{}
	}
	return nil
}

// save writes the record. Held: k.mu.
func (k *keeper) save() {
	if k.blob == nil || k.store.Why() != "" {
		return
	}
	data, err := json.Marshal(k.rec)
	if err == nil {
		err = k.blob.Save(data)
	}
	if err != nil {
		k.giveUp(err)
	}
}

// giveUp ends the keeping: the next start finds nothing. Held: k.mu.
func (k *keeper) giveUp(err error) {
	if k.store.Why() != "" {
		return
	}
	what := "nothing is kept for the next start"
	if k.stay != nil {
		what = "nothing but the card is kept for the next start"
	}
	k.log.Warn(what, "err", err)
	if e := k.abandon(err.Error()); e != nil {
		k.log.Warn("descriptors stay with the service manager", "err", e)
	}
}

// abandon takes everything out of the store but a card that lasts. Held: k.mu.
func (k *keeper) abandon(why string) error {
	if k.card != nil && k.stay == nil {
		k.card.SetKeeps(false)
	}
	return k.store.Abandon(why, k.stay...)
}

// why is the reason that nothing is kept, "" while everything is.
func (k *keeper) why() string { return k.store.Why() }

// lives is how many processes have kept this record, 0 when nothing is kept.
func (k *keeper) lives() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rec.Lives
}

// settle waits until the service manager has what it was given; until then the death
// of this process would lose it. Held: k.mu.
func (k *keeper) settle() error {
	ctx, cancel := context.WithTimeout(context.Background(), settleWait)
	defer cancel()
	return k.store.Settle(ctx)
}

// keepCard leaves a card to the next process, before it is told anything. A card that
// has no descriptors is none the worse for it.
func (k *keeper) keepCard(dev any) {
	card, ok := dev.(keptCard)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !ok || k.store.Why() != "" {
		return
	}
	err := card.Keep(k.store.Put)
	if err == nil {
		err = k.settle()
	}
	if err != nil {
		k.giveUp(fmt.Errorf("keep the card: %w", err))
		return
	}
	k.card = card
	if l, ok := dev.(lasting); ok {
		k.stay = l.Stays()
	}
	card.SetKeeps(true)
}

// keepPort leaves an interface.
func (k *keeper) keepPort(p board.Port, index, fd int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.store.Why() != "" {
		return
	}
	r := k.rec.Ports[p.Name]
	r.Index = index
	k.rec.Ports[p.Name] = r
	k.save() // the index first: a descriptor without one is of no use
	err := k.store.Put(keptPrefix+p.Name, fd)
	if err == nil {
		err = k.settle()
	}
	if err != nil {
		k.giveUp(fmt.Errorf("keep %s: %w", p.Name, err))
	}
}

// dropPort takes an interface back, so that it goes when this process closes it.
func (k *keeper) dropPort(p board.Port) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.store.Remove(keptPrefix + p.Name); err != nil {
		k.giveUp(err)
	}
}

// takePort is what the process before left of a port. The descriptor is the caller's.
func (k *keeper) takePort(p board.Port) (fd int, r portRecord, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if fd, ok = k.store.Take(keptPrefix + p.Name); !ok {
		return -1, portRecord{}, false
	}
	return fd, k.rec.Ports[p.Name], true
}

// notePort writes down what a port is to be, if that is another thing than before. The
// index stays as it is.
func (k *keeper) notePort(p board.Port, r portRecord) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.rec.Ports[p.Name]
	if r.Index = old.Index; r == old {
		return
	}
	k.rec.Ports[p.Name] = r
	k.save()
}

// end takes everything out of the store: interfaces and memory go when this process
// closes them. A card that lasts stays as it is, with its memory.
func (k *keeper) end() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.store.Why() != "" {
		return nil
	}
	return errors.Join(k.abandon("oxpd is ending, and leaves nothing"), k.settle())
}
