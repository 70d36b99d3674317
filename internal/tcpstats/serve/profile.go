package serve

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"oxpd/internal/tcpstats"
)

// Bounds of profiles.
const (
	MaxProfiles    = 16
	MaxProfileName = 32
)

// Profile is a filter with a name.
type Profile struct {
	Name   string
	Filter string // canonical
}

// CheckProfileName tells what is wrong with a name. Errors: *Refusal, ENAMETOOLONG and
// EINVAL.
func CheckProfileName(name string) error {
	switch {
	case len(name) > MaxProfileName:
		return &Refusal{tcpstats.CodeTooLong, fmt.Sprintf("the name has %d characters, more than %d", len(name), MaxProfileName)}
	case name == "" || strings.ContainsFunc(name, func(c rune) bool { return !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_') }):
		return &Refusal{tcpstats.CodeInvalid, fmt.Sprintf("profile name %q: want a to z, 0 to 9 and _", name)}
	}
	return nil
}

// SetProfile makes a profile, or changes it for opens that come. Errors, by which all stays
// as it was: *Refusal, *tcpstats.SyntaxError.
func (s *Service) SetProfile(name, text string) error {
	if err := CheckProfileName(name); err != nil {
		return err
	}
	f, err := tcpstats.Parse(text)
	if err != nil {
		return err
	}
	s.mu.Lock()
	_, there := s.profiles[name]
	if !there && len(s.profiles) >= MaxProfiles {
		s.mu.Unlock()
		return &Refusal{tcpstats.CodeNoSpace, fmt.Sprintf("there are %d profiles already", MaxProfiles)}
	}
	s.profiles[name] = f
	s.mu.Unlock()
	tcpstats.Probe(context.Background(), tcpstats.PointProfileCreate)
	return nil
}

// RemoveProfile removes a profile. Opens that copied it keep their filter. Errors: *Refusal,
// EINVAL, ENAMETOOLONG and ENOENT.
func (s *Service) RemoveProfile(name string) error {
	if err := CheckProfileName(name); err != nil {
		return err
	}
	s.mu.Lock()
	_, there := s.profiles[name]
	delete(s.profiles, name)
	s.mu.Unlock()
	if !there {
		return &Refusal{tcpstats.CodeNoProfile, fmt.Sprintf("there is no profile %q", name)}
	}
	tcpstats.Probe(context.Background(), tcpstats.PointProfileDestroy)
	return nil
}

// Profiles lists the profiles by name.
func (s *Service) Profiles() []Profile {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Profile
	for name, f := range s.profiles {
		out = append(out, Profile{name, f.String()})
	}
	slices.SortFunc(out, func(a, b Profile) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (s *Service) profile(name string) (tcpstats.Filter, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.profiles[name]
	return f, ok
}
