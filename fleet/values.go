// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// Limits of names and values.
const (
	// MaxNameBytes is the limit of names of queues and placement groups, and of patterns and addresses.
	MaxNameBytes = 255
	// MaxAddresses is the limit of addresses of a pair.
	MaxAddresses = 16
	// MaxLabels is the limit of labels of a pair or rule.
	MaxLabels = 32

	maxPairBytes  = 63
	maxValueBytes = 32 << 10
)

// State is the state of a pair in the directory.
type State string

// States of a pair. New queues are placed on open pairs only, except those of a placement group that is assigned to a
// draining or joining pair.
const (
	StateOpen     State = "open"
	StateDraining State = "draining"
	StateJoining  State = "joining" // Join has not finished
	StateLeaving  State = "leaving" // Leave has not finished; no queues are assigned to the pair
	// StateForgotten means that Forget has begun and not finished, usually because moves from the pair have not ended.
	StateForgotten State = "forgotten"
)

// Member is a pair of the fleet.
type Member struct {
	Name string `json:"-"`
	// ID is the permanent identity of the pair.
	ID string `json:"id"`
	// Addresses are the addresses of its nodes: host:port.
	Addresses []string          `json:"addresses"`
	State     State             `json:"state"`
	Labels    map[string]string `json:"labels,omitempty"`
	// CapacityBytes is the size of the filesystem of the store, or 0 if it is unknown. It has no effect on placements.
	CapacityBytes uint64 `json:"capacity_bytes,omitempty"`
}

// Load is the load of a pair.
type Load struct {
	Queues      uint64 `json:"queues"`
	StoredBytes uint64 `json:"stored_bytes"`
	FreeBytes   uint64 `json:"free_bytes"`
	// PublishRate is in messages per second.
	PublishRate float64 `json:"publish_rate"`
}

// Rule determines the pairs of new queues with a name that matches Pattern: one pair, or all pairs with the labels.
type Rule struct {
	// Pattern is a glob: `*` matches any sequence of bytes, `?` one byte.
	Pattern string            `json:"-"`
	Pair    string            `json:"pair,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
}

type fleetValue struct {
	ID string `json:"id"`
	// Rebuild is the number of the last rebuild. Rebuilding is set until that rebuild is finished; assignments are then
	// refused.
	Rebuild    uint64 `json:"rebuild,omitempty"`
	Rebuilding bool   `json:"rebuilding,omitempty"`
}

// entryValue is the owner of a queue.
type entryValue struct {
	Pair  string `json:"pair"`
	Epoch uint64 `json:"epoch"`
	// Term is the term in which the active of the pair has claimed the entry; 0 if the entry is unclaimed.
	Term  uint64 `json:"term,omitempty"`
	Group string `json:"group,omitempty"`
}

type groupValue struct {
	Pair string `json:"pair"`
}

func encode(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // all types consist of strings, integers and checked numbers
	}
	return string(raw)
}

func decode(raw []byte, v any) error {
	if len(raw) > maxValueBytes {
		return fmt.Errorf("%d bytes, limit %d", len(raw), maxValueBytes)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("invalid JSON: %w", err)
	}
	return nil
}

func decodeFleet(raw []byte) (v fleetValue, err error) {
	if err = decode(raw, &v); err == nil && v.ID == "" {
		err = errors.New("no ID")
	}
	return v, err
}

func decodeCounter(raw []byte) (uint64, error) {
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("invalid number: %w", err)
	}
	return n, nil
}

func decodeEntry(raw []byte) (v entryValue, err error) {
	err = decode(raw, &v)
	switch {
	case err != nil:
		return v, err
	case v.Epoch == 0:
		return v, errors.New("no epoch")
	}
	return v, CheckPair(v.Pair)
}

func decodeGroup(raw []byte) (v groupValue, err error) {
	if err = decode(raw, &v); err == nil {
		err = CheckPair(v.Pair)
	}
	return v, err
}

func decodeMember(name string, raw []byte) (m Member, err error) {
	if err = decode(raw, &m); err == nil {
		m.Name = name
		err = checkMember(m)
	}
	return m, err
}

func decodeLoad(raw []byte) (l Load, err error) {
	if err = decode(raw, &l); err == nil && l.PublishRate < 0 {
		err = errors.New("negative publish rate")
	}
	return l, err
}

func decodeRule(pattern string, raw []byte) (r Rule, err error) {
	if err = decode(raw, &r); err == nil {
		r.Pattern = pattern
		err = checkRule(r)
	}
	return r, err
}

// checkName verifies the name of a queue or group, a pattern, or an address. The store has stricter rules for names.
func checkName(what, name string) error {
	switch {
	case name == "" || len(name) > MaxNameBytes:
		return fmt.Errorf("%w: %s of %d bytes, must have 1 to %d", ErrInvalid, what, len(name), MaxNameBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %s %.40q is not UTF-8", ErrInvalid, what, name)
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w: %s %.40q contains a control character", ErrInvalid, what, name)
		}
	}
	return nil
}

// CheckPair returns an error that wraps ErrInvalid if name is not a name of a pair: 1 to 63 characters of
// [A-Za-z0-9._-].
func CheckPair(name string) error {
	if name == "" || len(name) > maxPairBytes {
		return fmt.Errorf("%w: pair name of %d bytes, must have 1 to %d", ErrInvalid, len(name), maxPairBytes)
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("%w: pair name %q contains %q; only A-Z a-z 0-9 . _ - are allowed", ErrInvalid, name, c)
		}
	}
	return nil
}

func checkMember(m Member) error {
	if err := CheckPair(m.Name); err != nil {
		return err
	}
	if m.ID == "" || len(m.ID) > maxPairBytes {
		return fmt.Errorf("%w: pair ID of %d bytes, must have 1 to %d", ErrInvalid, len(m.ID), maxPairBytes)
	}
	switch m.State {
	case StateOpen, StateDraining, StateJoining, StateLeaving, StateForgotten:
	default:
		return fmt.Errorf("%w: state %.40q of pair %s", ErrInvalid, m.State, m.Name)
	}
	if len(m.Addresses) > MaxAddresses {
		return fmt.Errorf("%w: %d addresses of pair %s, limit %d", ErrInvalid, len(m.Addresses), m.Name, MaxAddresses)
	}
	for _, a := range m.Addresses {
		if err := checkName("address", a); err != nil {
			return err
		}
	}
	return CheckLabels(m.Labels)
}

// CheckLabels returns an error that wraps ErrInvalid if labels exceed a limit. A pair or a rule can have MaxLabels
// labels, with names of 1 to 63 bytes and values of at most 63 bytes.
func CheckLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return fmt.Errorf("%w: %d labels, limit %d", ErrInvalid, len(labels), MaxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > maxPairBytes || len(v) > maxPairBytes {
			return fmt.Errorf("%w: label %.40q with a name or value of more than %d bytes", ErrInvalid, k, maxPairBytes)
		}
	}
	return nil
}

func checkRule(r Rule) error {
	if err := checkName("pattern", r.Pattern); err != nil {
		return err
	}
	if (r.Pair == "") == (len(r.Labels) == 0) {
		return fmt.Errorf("%w: rule %.40q must have a pair or labels", ErrInvalid, r.Pattern)
	}
	if r.Pair != "" {
		return CheckPair(r.Pair)
	}
	return CheckLabels(r.Labels)
}
