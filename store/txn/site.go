// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// SiteVersion is the first byte of an envelope: a transaction of the primary site in the log of a replica.
const SiteVersion = 2

// maxSiteBytes is the maximum length of an envelope without its transaction.
const maxSiteBytes = 1 + len(uuid.UUID{}) + 4*binary.MaxVarintLen64 + 4

// Site is the header of an envelope.
type Site struct {
	// Lineage identifies the group of sites. It is not zero.
	Lineage uuid.UUID
	// Epoch is the epoch of the primary, at least 1.
	Epoch uint64
	// Upstream is the position of the transaction in the log of the primary.
	Upstream lsn.Position
	// Logical is the logical number of the transaction, at least 1. It is the same at all sites.
	Logical uint64
}

// AppendSite appends an envelope with the transaction inner to dst. inner must not be an envelope itself.
func AppendSite(dst []byte, s *Site, inner []byte) []byte {
	dst = append(append(dst, SiteVersion), s.Lineage[:]...)
	dst = appendPosition(binary.AppendUvarint(dst, s.Epoch), s.Upstream)
	return append(binary.AppendUvarint(dst, s.Logical), inner...)
}

func appendPosition(dst []byte, p lsn.Position) []byte {
	dst = binary.AppendUvarint(binary.AppendUvarint(dst, p.Term), p.LSN)
	return binary.LittleEndian.AppendUint32(dst, p.Chain)
}

func (d *decoder) position() (p lsn.Position) {
	p.Term, p.LSN = d.uvarint(), d.uvarint()
	p.Chain = d.u32()
	return p
}

func (d *decoder) lineage() (id uuid.UUID) {
	if len(d.b) < len(id) {
		d.fail("truncated")
		return id
	}
	d.b = d.b[copy(id[:], d.b):]
	if id == uuid.Nil {
		d.fail("lineage of 0")
	}
	return id
}

// envelope decodes the header of an envelope, and returns the transaction in it. The first byte must be SiteVersion.
func (r *Reader) envelope(payload []byte) ([]byte, error) {
	d := decoder{b: payload[1:]}
	s := Site{Lineage: d.lineage(), Epoch: d.uvarint(), Upstream: d.position(), Logical: d.uvarint()}
	if d.err == nil && (s.Epoch == 0 || s.Upstream.LSN == 0 || s.Logical == 0) {
		d.fail("envelope with a number of 0")
	}
	if d.err == nil && len(d.b) > 0 && d.b[0] == SiteVersion {
		d.fail("envelope in an envelope")
	}
	if d.err != nil {
		return nil, d.err
	}
	r.site, r.hasSite = s, true
	return d.b, nil
}

// Site returns the header of the envelope that contains the transaction, or nil if it has none. The header is valid
// until the next Reset. If Reset rejects only the transaction in the envelope, Site still returns the header.
func (r *Reader) Site() *Site {
	if !r.hasSite {
		return nil
	}
	return &r.site
}

// Transaction returns the payload without its envelope.
func (r *Reader) Transaction() []byte { return r.transaction }

// ForSites reports whether the transaction is in an envelope, or may be an OpSite.
func (r *Reader) ForSites() bool {
	return r.hasSite || r.startsWithSite()
}

func (r *Reader) startsWithSite() bool { return len(r.body) > 0 && OpCode(r.body[0]) == OpSite }

// SiteChange returns the change of a transaction that consists of one OpSite. If the transaction has other operations,
// ok is false. SiteChange may call Rewind. The errors are those of Next.
func (r *Reader) SiteChange() (c SiteChange, ok bool, err error) {
	if r.ops != 1 || !r.startsWithSite() {
		return c, false, nil
	}
	defer r.Rewind()
	r.Rewind()
	op, err := r.Next()
	if err != nil {
		return c, false, err
	}
	if _, err := r.Next(); err != io.EOF { //nolint:errorlint // Next does not wrap io.EOF
		return c, false, err
	}
	return op.SiteChange(), true, nil
}

// SiteAction is the kind of a SiteChange.
type SiteAction uint8

// Site actions. They are stored in the log and never change their meaning.
const (
	// SiteStart makes a pair without a lineage the primary of a new lineage, with epoch 1.
	SiteStart SiteAction = 1
	// SiteStop makes the primary reject all transactions except for an OpSite.
	SiteStop SiteAction = 2
	// SiteResume makes a stopped pair the primary again, with the same epoch.
	SiteResume SiteAction = 3
	// SitePromote makes a replica or a stopped pair the primary, with a higher epoch.
	SitePromote SiteAction = 4
	// SiteFollow makes the pair a replica of a primary.
	SiteFollow SiteAction = 5
	// SiteCancel cancels, at a replica, the stops of the primary up to a position in the primary's log. Canceled stops
	// do not permit a planned promotion.
	SiteCancel SiteAction = 6
)

var siteActions = [...]string{ //nolint:gochecknoglobals // a table
	SiteStart: "start", SiteStop: "stop", SiteResume: "resume", SitePromote: "promote", SiteFollow: "follow",
	SiteCancel: "cancel",
}

// String returns the name of the action, as shown by `store dump-log`.
func (a SiteAction) String() string {
	if int(a) < len(siteActions) && siteActions[a] != "" {
		return siteActions[a]
	}
	return "unknown"
}

// SiteChange is the content of an OpSite. Action determines the fields that are set.
type SiteChange struct {
	Action SiteAction
	// Expected is the epoch that the pair must have. It is 0 for SiteStart, and unused for SiteFollow.
	Expected uint64
	// Lineage is the lineage for SiteStart and SiteFollow. It must not be zero.
	Lineage uuid.UUID
	// Epoch is the new epoch for SitePromote and SiteFollow, at least 1.
	Epoch uint64
	// Upstream is, for SiteFollow, the position in the log of the primary after which the replica continues. It must be
	// at or after the record that made that pair the primary with this epoch. The zero position is before the first
	// record. For SiteCancel, it is the position of the stop that is canceled, or later.
	Upstream lsn.Position
	// Logical is, for SiteFollow, the last logical number up to Upstream.
	Logical uint64
	// Stopped reports, for SiteFollow, whether the primary is stopped at Upstream.
	Stopped bool
	// Lossy reports, for SitePromote, whether the pair may lack transactions of the former primary.
	Lossy bool
	// LossyEpoch is, for SiteFollow, the last epoch of the primary that began with a lossy promotion; 0 for none.
	LossyEpoch uint64
}

const (
	flagStopped = 1 // of a SiteFollow
	flagLossy   = 1 // of a SitePromote
)

// Site adds an operation that changes the site role of the pair.
func (b *Builder) Site(c SiteChange) {
	if err := c.check(); err != nil {
		b.fail(err)
	}
	b.begin(OpSite)
	b.buf = append(b.buf, byte(c.Action))
	if c.Action != SiteFollow {
		b.buf = binary.AppendUvarint(b.buf, c.Expected)
	}
	switch c.Action {
	case SiteStart:
		b.buf = append(b.buf, c.Lineage[:]...)
	case SitePromote:
		b.buf = append(binary.AppendUvarint(b.buf, c.Epoch), flag(c.Lossy, flagLossy))
	case SiteFollow:
		b.buf = append(b.buf, c.Lineage[:]...)
		b.buf = appendPosition(binary.AppendUvarint(b.buf, c.Epoch), c.Upstream)
		b.buf = binary.AppendUvarint(b.buf, c.Logical)
		b.buf = append(binary.AppendUvarint(b.buf, c.LossyEpoch), flag(c.Stopped, flagStopped))
	case SiteCancel:
		b.buf = appendPosition(b.buf, c.Upstream)
	case SiteStop, SiteResume:
	}
	b.end()
}

func flag(set bool, value byte) byte {
	if set {
		return value
	}
	return 0
}

func (c *SiteChange) check() error {
	start, promote, follow := c.Action == SiteStart, c.Action == SitePromote, c.Action == SiteFollow
	switch {
	case c.Action < SiteStart || c.Action > SiteCancel:
		return fmt.Errorf("%w: site action %d", ErrNewerVersion, uint8(c.Action))
	case (start || follow) && c.Lineage == uuid.Nil:
		return fmt.Errorf("%w: lineage of 0", ErrMalformed)
	case (promote || follow) && c.Epoch == 0:
		return fmt.Errorf("%w: site epoch of 0", ErrMalformed)
	}
	return nil
}

func (o *Op) decodeSite(d *decoder) {
	o.Raw = d.b
	c := d.siteChange()
	if d.err == nil {
		d.err = c.check()
	}
}

func (d *decoder) siteChange() (c SiteChange) {
	c.Action = SiteAction(d.u8())
	if c.Action != SiteFollow {
		c.Expected = d.uvarint()
	}
	switch c.Action {
	case SiteStart:
		c.Lineage = d.lineage()
	case SitePromote:
		c.Epoch = d.uvarint()
		c.Lossy = d.siteFlags() == flagLossy
	case SiteFollow:
		c.Lineage = d.lineage()
		c.Epoch, c.Upstream, c.Logical = d.uvarint(), d.position(), d.uvarint()
		c.LossyEpoch = d.uvarint()
		c.Stopped = d.siteFlags() == flagStopped
	case SiteCancel:
		c.Upstream = d.position()
	case SiteStop, SiteResume:
	default:
		if d.err == nil {
			d.err = fmt.Errorf("%w: site action %d", ErrNewerVersion, uint8(c.Action))
		}
	}
	return c
}

func (d *decoder) siteFlags() byte {
	flags := d.u8()
	if flags > 1 && d.err == nil {
		d.err = fmt.Errorf("%w: flags %#x of a site change", ErrNewerVersion, flags)
	}
	return flags
}

// SiteChange returns the change of an OpSite, which Next has verified. For other operations it is zero.
func (o *Op) SiteChange() (c SiteChange) {
	if o.Code == OpSite {
		d := decoder{b: o.Raw}
		c = d.siteChange()
	}
	return c
}
