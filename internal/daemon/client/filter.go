package client

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Bounds of filters on the control socket.
const (
	// MaxFilterBody is the longest request that loads a filter, bytes of JSON: a rule
	// file with sets of a million prefixes, IPv6 ones too, is half of it.
	MaxFilterBody = 64 << 20
	// maxFilterView is for a filter of 65,536 rules and their counters, bytes of JSON.
	maxFilterView = 64 << 20
	// maxFilterSource is for 144 MiB of rules and other files, as many as those of a
	// configuration may be, bytes of JSON.
	maxFilterSource = 193 << 20
	// MaxFilterName is the longest name of a filter, bytes.
	MaxFilterName = 64
)

// AllPorts stands for every front port where a filter is linked or unlinked.
const AllPorts = "all"

// Directions of a link.
const (
	DirectionIn   = "in"   // from the wire to the host
	DirectionOut  = "out"  // from the host to the wire
	DirectionBoth = "both" // either; a FilterLink has one of the others
)

// Origins of a filter.
const (
	OriginConfig  = "config"  // the configuration file: it is there again after a restart
	OriginCommand = "command" // oxpd filter load: it is not
)

// FilterSource is what a filter is made of: the rule file and the files that it names.
type FilterSource struct {
	Schema int               `json:"schema"`
	Name   string            `json:"name"`
	File   string            `json:"file"`  // where the rules were read, for messages
	Rules  []byte            `json:"rules"` // base64 in JSON, as all bytes here
	Files  map[string][]byte `json:"files"` // by the path that the rules have for it
}

// FilterLoaded is what loading a filter has changed.
type FilterLoaded struct {
	Schema   int    `json:"schema"`
	Name     string `json:"name"`
	Rules    int    `json:"rules"`
	Replaced bool   `json:"replaced"` // there was one of that name, whose links are those of the new one
	Kept     int    `json:"kept"`     // rules that were there before, whose counters go on
	Added    int    `json:"added"`    // rules whose counters begin at 0
	Removed  int    `json:"removed"`  // rules of before that are gone, and their counters
	// Links are where it judges: those of the one that it replaced.
	Links    []FilterLink `json:"links"`
	Warnings []string     `json:"warnings"` // FILE:LINE: and why that rule can never match
}

// FilterLink is a place that a filter is linked to.
type FilterLink struct {
	IfName    string `json:"ifname"`
	Label     string `json:"label"`
	Direction string `json:"direction"` // in or out
}

// FilterCount counts frames and their bytes, without FCS.
type FilterCount struct {
	Frames uint64 `json:"frames"`
	Bytes  uint64 `json:"bytes"`
}

// Filter is a loaded filter in brief.
type Filter struct {
	Name      string       `json:"name"`
	File      string       `json:"file"`
	Origin    string       `json:"origin"`
	Rules     int          `json:"rules"`
	Loaded    time.Time    `json:"loaded"`
	Links     []FilterLink `json:"links"`
	Judged    FilterCount  `json:"judged"`    // frames that it was asked about: hits of all rules, gone, and unmatched
	Gone      FilterCount  `json:"gone"`      // hits of rules that others were loaded in the place of
	Unmatched FilterCount  `json:"unmatched"` // frames that no rule of it matched: they went on
}

// Filters are the loaded filters in order of name.
type Filters struct {
	Schema  int      `json:"schema"`
	Filters []Filter `json:"filters"`
	// Order has each port and direction that more than one filter is linked to.
	Order []FilterOrder `json:"order,omitempty"`
}

// FilterOrder is the filters at one place, in the order in which they are asked: the
// first with a matching rule decides.
type FilterOrder struct {
	FilterLink
	Filters []string `json:"filters"`
}

// FilterRule is a rule with its counters.
type FilterRule struct {
	Line    int        `json:"line"` // of the rule file
	Verdict string     `json:"verdict"`
	Rule    string     `json:"rule"` // in the rules' own language
	Hits    uint64     `json:"hits"`
	Bytes   uint64     `json:"bytes"`              // of the frames, without FCS
	LastHit *time.Time `json:"last_hit,omitempty"` // absent: none yet
}

// FilterView is a filter with its rules.
type FilterView struct {
	Schema int `json:"schema"`
	Filter
	Now      time.Time    `json:"now"` // when it was read
	List     []FilterRule `json:"rule_list"`
	Warnings []string     `json:"warnings"` // rules that can never match
}

// Place is something wrong in a file: where, why, and the line.
type Place struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"` // in bytes, from 1
	Why    string `json:"why"`
	Text   string `json:"text"`
}

// CheckFilterName refuses what no filter can be called: want letters, digits and
// underscores, behind the first also dots and hyphens, and at most MaxFilterName bytes.
func CheckFilterName(name string) error {
	good := func(i int, c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || i > 0 && (c == '.' || c == '-')
	}
	switch {
	case name == "":
		return errors.New("the name of the filter is empty")
	case len(name) > MaxFilterName:
		return fmt.Errorf("name of a filter with %d bytes: want %d at most", len(name), MaxFilterName)
	}
	for i, c := range name {
		if !good(i, c) {
			return fmt.Errorf("name of a filter %q: want letters, digits and _, behind the first also . and -", name)
		}
	}
	return nil
}

const (
	filtersPath = "/v1/filters"
	samplesPath = "/v1/samples"
)

func filterPath(name, rest string) string { return filtersPath + "/" + url.PathEscape(name) + rest }

// Filters lists the loaded filters.
func (c *Client) Filters(ctx context.Context) (*Filters, error) {
	return get[Filters](ctx, c, filtersPath)
}

// Filter reads a filter and its counters.
func (c *Client) Filter(ctx context.Context, name string) (*FilterView, error) {
	return c.filterView(ctx, http.MethodGet, filterPath(name, ""))
}

// FilterSource reads what a filter was made of.
func (c *Client) FilterSource(ctx context.Context, name string) (*FilterSource, error) {
	out := new(FilterSource)
	if err := c.long(ctx, http.MethodGet, filterPath(name, "/source"), nil, out, maxFilterSource); err != nil {
		return nil, err
	}
	return out, nil
}

// LoadFilter loads a filter, or replaces the one of its name, whose links stay. Rules
// that do not compile are an *Error with the Place, and change nothing. So is a source
// that is too long to be sent.
func (c *Client) LoadFilter(ctx context.Context, src *FilterSource) (*FilterLoaded, error) {
	bytes := base64.StdEncoding.EncodedLen(len(src.Rules))
	for _, b := range src.Files {
		bytes += base64.StdEncoding.EncodedLen(len(b))
	}
	if bytes > MaxFilterBody-1<<16 { // names and braces take the rest
		return nil, &Error{Schema: Schema, Code: CodeUsage, Message: fmt.Sprintf("filter %s and its files are %d MiB as sent: want %d at most", src.Name, bytes>>20, MaxFilterBody>>20)}
	}
	out := new(FilterLoaded)
	if err := c.do(ctx, http.MethodPut, filterPath(src.Name, ""), src, out); err != nil {
		return nil, err
	}
	return out, nil
}

// UnloadFilter takes a filter out; one that is linked is refused.
func (c *Client) UnloadFilter(ctx context.Context, name string) (*Filters, error) {
	out := new(Filters)
	if err := c.do(ctx, http.MethodDelete, filterPath(name, ""), nil, out); err != nil {
		return nil, err
	}
	return out, nil
}

// LinkFilter has a filter judge the frames of a port, or of AllPorts, in a direction.
func (c *Client) LinkFilter(ctx context.Context, name, port, direction string) (*FilterView, error) {
	return c.changeLink(ctx, http.MethodPut, name, port, direction)
}

// UnlinkFilter takes that back. When it returns the filter drops nothing there any more.
func (c *Client) UnlinkFilter(ctx context.Context, name, port, direction string) (*FilterView, error) {
	return c.changeLink(ctx, http.MethodDelete, name, port, direction)
}

func (c *Client) changeLink(ctx context.Context, method, name, port, direction string) (*FilterView, error) {
	return c.filterView(ctx, method, filterPath(name, "/links/"+url.PathEscape(port)+"/"+url.PathEscape(direction)))
}

func (c *Client) filterView(ctx context.Context, method, path string) (*FilterView, error) {
	out := new(FilterView)
	if err := c.long(ctx, method, path, nil, out, maxFilterView); err != nil {
		return nil, err
	}
	return out, nil
}

// Samples writes the frames that sample rules have copied to w, as pcapng: those of one
// filter, or of all when name is empty. What is still there is written; reading takes
// nothing away.
func (c *Client) Samples(ctx context.Context, name string, w io.Writer) error {
	path := samplesPath
	if name != "" {
		path += "?filter=" + url.QueryEscape(name)
	}
	resp, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c.refusal(resp, http.MethodGet, path)
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("read samples of %s: %w", c.socket, err)
	}
	return nil
}
