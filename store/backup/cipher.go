// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Errors of encrypted data.
var (
	// ErrEncrypted means that the data is encrypted and no identity was given.
	ErrEncrypted = errors.New("encrypted, but no identity was given")
	// ErrIdentity means that none of the given identities can decrypt the data.
	ErrIdentity = errors.New("encrypted for other identities")
)

// Sealer encrypts backups and log archives. It does not need the key for decryption.
type Sealer interface {
	// Seal returns a writer that encrypts to w. Its Close completes the encryption and does not close w.
	Seal(w io.Writer) (io.WriteCloser, error)
	Recipients() []string
}

// Unsealer decrypts the data of a Sealer.
type Unsealer interface {
	// Unseal decrypts the first size bytes of r. It returns a reader of the decrypted data, and the size of that data. The
	// reader authenticates all data. Unseal returns ErrIdentity if no key matches.
	Unseal(r io.ReaderAt, size int64) (io.ReaderAt, int64, error)
}

const sealScheme = "age-encryption.org/v1"

// Encryption describes the encryption of a backup.
type Encryption struct {
	Scheme     string   `json:"scheme"`
	Recipients []string `json:"recipients"` // public keys
	Plain      FileSum  `json:"plain"`      // size and checksum of the decrypted pack
}

type unsealed struct {
	io.ReaderAt
	io.Closer
	size int64
}

func (u unsealed) SizeBytes() (int64, error) { return u.size, nil }

func openPlain(ctx context.Context, place Objects, name string, e *Encryption, with Unsealer) (Object, error) {
	f, err := place.Open(ctx, name)
	if err != nil || e == nil {
		return f, err
	}
	size, err := f.SizeBytes()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", place.Path(name), err), f.Close())
	}
	r, plain, err := unseal(f, size, place.Path(name), e.Recipients, with)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return unsealed{ReaderAt: r, Closer: f, size: plain}, nil
}

// unseal decrypts the first size bytes of r. It returns ErrEncrypted if with is nil, and ErrIdentity if no key
// matches. Both errors list the recipients, if known.
func unseal(r io.ReaderAt, size int64, what string, recipients []string, with Unsealer) (io.ReaderAt, int64, error) {
	required := ""
	if len(recipients) > 0 {
		required = fmt.Sprintf("; requires the identity of one of %q", recipients)
	}
	if with == nil {
		return nil, 0, fmt.Errorf("%s: %w%s", what, ErrEncrypted, required)
	}
	plain, n, err := with.Unseal(r, size)
	if errors.Is(err, ErrIdentity) {
		return nil, 0, fmt.Errorf("%s: %w%s", what, err, required)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("decrypt %s: %w", what, err)
	}
	return plain, n, nil
}
