// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Prefixes of converted message IDs and correlation IDs (AMQP JMS Mapping, 3.2.1.1).
const (
	idPrefix   = "ID:AMQP_"
	idBinary   = idPrefix + "BINARY:"
	idUUID     = idPrefix + "UUID:"
	idUlong    = idPrefix + "ULONG:"
	idString   = idPrefix + "STRING:"
	idNoPrefix = idPrefix + "NO_PREFIX:"
)

func notAllowed(text string) error {
	return &wire.Error{Condition: "amqp:not-allowed", Description: text}
}

// id converts a message ID or correlation ID to a string. A string is unchanged, unless it has the prefix of a
// converted ID: it then gets the prefix idString.
func (d *decoded) id(v value) string {
	switch {
	case v.isUlong():
		return idUlong + strconv.FormatUint(v.bits(), 10)
	case v.code == codeUUID:
		return formatUUID(idUUID, v.data)
	case v.isBinary():
		if len(v.data) > maxFieldBytes { // above the limit: rejected
			v.data = v.data[:maxFieldBytes]
		}
		return idBinary + strings.ToUpper(hex.EncodeToString(v.data))
	}
	s := d.string(v.data)
	for _, prefix := range [...]string{idBinary, idUUID, idUlong, idString, idNoPrefix} {
		if strings.HasPrefix(s, prefix) {
			return idString + s
		}
	}
	return s
}

// appendID reverses id: it appends the ID with its original type. Without a valid prefix, it appends s as a string.
func appendID(b []byte, s string) []byte {
	kind, rest, _ := strings.Cut(s, ":")
	if !strings.HasPrefix(s, idPrefix) || kind != "ID" {
		return wire.AppendString(b, s)
	}
	kind, rest, _ = strings.Cut(rest, ":")
	switch "ID:" + kind + ":" {
	case idUlong:
		if n, err := strconv.ParseUint(rest, 10, 64); err == nil {
			return wire.AppendUlong(b, n)
		}
	case idUUID:
		if id, ok := parseUUID(rest); ok {
			return append(append(b, codeUUID), id[:]...)
		}
	case idBinary:
		if id, err := hex.DecodeString(rest); err == nil {
			return wire.AppendBinary(b, id)
		}
	case idString, idNoPrefix:
		return wire.AppendString(b, rest)
	}
	return wire.AppendString(b, s)
}

// formatUUID returns a UUID in the format of RFC 4122 after a prefix.
func formatUUID(prefix string, id []byte) string {
	b := append(make([]byte, 0, len(idUUID)+36), prefix...)
	for i, from := range [...]int{0, 4, 6, 8, 10} {
		if i > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, id[from:[...]int{4, 6, 8, 10, 16}[i]])
	}
	return string(b)
}

func parseUUID(s string) (id [16]byte, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, false
	}
	n, err := hex.Decode(id[:], []byte(s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:]))
	return id, err == nil && n == len(id)
}
