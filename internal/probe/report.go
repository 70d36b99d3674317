package probe

// Schema numbers the document. A change that breaks a reader raises it.
const Schema = 1

// Report is what one look found; `oxpd probe --json` prints it. Values of
// registers are text in hexadecimal, in full width: 64 bits do not fit the numbers
// of JSON. A section that was not looked at is absent.
type Report struct {
	Schema int    `json:"schema"`           // 1
	Device string `json:"device"`           // its name: sim, 0000:01:00.0
	Source string `json:"source,omitempty"` // of a simulated card: the moment of its life
	Gone   bool   `json:"gone"`             // the card does not answer; what follows is from before

	Config    Config     `json:"config"`              // config space
	RingInfo  *RingInfo  `json:"ring_info,omitempty"` // SDP_EPF_RINFO
	Readiness *Readiness `json:"readiness,omitempty"` // SDP_SCRATCH
	Handshake *Handshake `json:"handshake,omitempty"` // SLI_EPF_SCRATCH
	Barmap    *Barmap    `json:"barmap,omitempty"`    // when it is sound
	RPC       *Window    `json:"rpc,omitempty"`       // where the barmap has it
	NetAgent  *Window    `json:"nw_agent,omitempty"`  // where the barmap has it
	Globals   []Register `json:"globals,omitempty"`   // error status, events, PCIe port
	Rings     []Ring     `json:"rings,omitempty"`     // 0 to 7

	Findings []Finding `json:"findings"` // what stands in the way, then what is worth knowing
	Run      Run       `json:"run"`      // what oxpd run would do
	// Refused counts loads of BAR2 that the allow-list stopped. Any is a defect.
	Refused uint64 `json:"refused"`
}

// Config is what config space shows.
type Config struct {
	Vendor     string   `json:"vendor"`
	Device     string   `json:"device"`
	Class      string   `json:"class,omitempty"`
	Revision   string   `json:"revision,omitempty"`
	Command    string   `json:"command,omitempty"`
	Memory     bool     `json:"memory_decoding"`
	BusMaster  bool     `json:"bus_master"`
	Status     string   `json:"status,omitempty"`
	BARs       []string `json:"bars,omitempty"` // addresses of BAR0, BAR2, BAR4
	Recognised bool     `json:"recognised"`     // the function that oxpd drives
}

// RingInfo is SDP_EPF_RINFO.
type RingInfo struct {
	Value string `json:"value"`
	SRN   int    `json:"srn"`  // first ring of the physical function
	TRS   int    `json:"trs"`  // rings in all
	RPVF  int    `json:"rpvf"` // rings of each virtual function
	NVFS  int    `json:"nvfs"` // virtual functions
}

// Readiness is SDP_SCRATCH.
type Readiness struct {
	Value string `json:"value"`
	State string `json:"state"` // booting, ready, overwritten
	Words string `json:"words"`
}

// Handshake is SLI_EPF_SCRATCH.
type Handshake struct {
	Value string `json:"value"`
	State string `json:"state"` // idle, offered, asked, answered, received, completed, started, foreign
	Words string `json:"words"`
	// FastPath says whether the fast path shows signs of life: the second witness
	// of a handshake that is over.
	FastPath bool `json:"fast_path"`
}

// Barmap is the table of facility windows, when it is sound.
type Barmap struct {
	Offset     string     `json:"offset"` // in BAR2
	Version    string     `json:"version"`
	Doorbell   string     `json:"doorbell"` // offset in BAR2 of the word that nothing reads
	Facilities []Facility `json:"facilities"`
}

// Facility is one record of the barmap.
type Facility struct {
	Name      string `json:"name"`
	Present   bool   `json:"present"`
	Offset    string `json:"offset,omitempty"`
	Size      string `json:"size,omitempty"`
	Doorbell  uint32 `json:"first_doorbell,omitempty"`
	Doorbells uint32 `json:"doorbells,omitempty"`
}

// Window is the head of a facility's window.
type Window struct {
	Value string `json:"value"` // its first word
	Words string `json:"words"`
}

// Register is one register of BAR0.
type Register struct {
	Name   string `json:"name"`
	Offset string `json:"offset"`
	Value  string `json:"value"`
}

// Ring is a ring's two halves, named from the card's side.
type Ring struct {
	Ring      int        `json:"ring"`
	Owner     int        `json:"owner"` // 0 the physical function, else a virtual one's number
	In        In         `json:"in"`
	Out       Out        `json:"out"`
	Registers []Register `json:"registers"`
}

// In is the input queue: host to card.
type In struct {
	Enabled  bool   `json:"enabled"`
	Idle     bool   `json:"idle"`
	Base     string `json:"baddr"`    // bus address of the instructions
	Entries  uint64 `json:"rsize"`    // instructions
	Wide     bool   `json:"is_64b"`   // instructions of 64 bytes
	Posted   uint32 `json:"posted"`   // instructions that the card has not fetched
	Position uint32 `json:"position"` // of the fetch, bytes
	Finished uint32 `json:"finished"` // instructions, not acknowledged
	Packets  uint64 `json:"packets"`  // fetched
	Bytes    uint64 `json:"bytes"`    // of those
}

// Out is the output queue: card to host.
type Out struct {
	Enabled  bool   `json:"enabled"`
	Idle     bool   `json:"idle"`
	Base     string `json:"baddr"`         // bus address of the buffer list
	Entries  uint64 `json:"rsize"`         // buffers
	Buffer   uint64 `json:"bsize"`         // bytes of a buffer
	Credit   int32  `json:"credit"`        // buffers
	Position uint32 `json:"position"`      // of the fetch, bytes
	Waiting  uint32 `json:"waiting"`       // packets written and not acknowledged
	Level    uint64 `json:"level_packets"` // an interrupt comes at so many
	Ticks    uint64 `json:"level_ticks"`   // of 1,024 clocks
	Packets  uint64 `json:"packets"`       // written
	Bytes    uint64 `json:"bytes"`         // of those
}

// Level is how much a finding matters to `oxpd run`.
type Level string

// Levels.
const (
	LevelStop Level = "stop" // run stops there, and waiting does not help
	LevelNote Level = "note" // worth knowing, or different from the records
)

// Finding is something that stands in the way, or that an owner should know.
type Finding struct {
	Level Level  `json:"level"` // stop: oxpd run stops there, and waiting does not help; note
	Text  string `json:"text"`
	Hint  string `json:"hint,omitempty"` // what to do
}

// Verdict is what would come of a stage.
type Verdict string

// Verdicts.
const (
	Passes     Verdict = "passes"
	Waits      Verdict = "waits" // for something that comes by itself
	Stops      Verdict = "stops"
	Open       Verdict = "open"        // only doing it would tell
	NotReached Verdict = "not reached" // an earlier stage stops
)

// Run is what `oxpd run` would do with the card as it is.
type Run struct {
	Stops  bool    `json:"stops"`           // and the exit status is 1
	Stage  string  `json:"stage,omitempty"` // the one that it stops in
	Stages []Stage `json:"stages"`
}

// Stage is one step of the bring-up, named as in `oxpd status`.
type Stage struct {
	Name    string  `json:"name"`
	Does    string  `json:"does"`
	Verdict Verdict `json:"verdict"` // passes, waits, stops, open (only doing it would tell), not reached
	Why     string  `json:"why,omitempty"`
}
