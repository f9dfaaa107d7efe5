// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Errors of what is encrypted.
var (
	// ErrEncrypted is returned when what is to be read is encrypted and no identity was given.
	ErrEncrypted = errors.New("it is encrypted, and no identity was given to decrypt it with")
	// ErrIdentity is returned when none of the identities given can decrypt it.
	ErrIdentity = errors.New("it is encrypted, and none of the identities given can decrypt it")
)

// Sealer encrypts save-sets and log archives. What encrypts need not be able to decrypt.
type Sealer interface {
	// Seal returns a writer: what is written to it reaches w encrypted. Its Close ends that, and does not close w.
	Seal(w io.Writer) (io.WriteCloser, error)
	// Recipients that can decrypt it, in public form.
	Recipients() []string
}

// Unsealer decrypts what a Sealer has encrypted.
type Unsealer interface {
	// Unseal shows what is encrypted in the first size bytes of r, and how much that is. What is read has been proven
	// to be what was encrypted. It returns ErrIdentity when it has not the right key.
	Unseal(r io.ReaderAt, size int64) (io.ReaderAt, int64, error)
}

// sealScheme is the only one there is: the format age-encryption.org/v1.
const sealScheme = "age-encryption.org/v1"

// Encryption says how what is in a save-set is encrypted.
type Encryption struct {
	// Scheme is age-encryption.org/v1.
	Scheme string `json:"scheme"`
	// Recipients whose identities can decrypt it.
	Recipients []string `json:"recipients"`
	// Plain is what the pack is when it is decrypted.
	Plain FileSum `json:"plain"`
}

// unsealed is an encrypted object, decrypted.
type unsealed struct {
	io.ReaderAt
	io.Closer
	size int64
}

func (u unsealed) SizeBytes() (int64, error) { return u.size, nil }

// openPlain opens an object, and decrypts it if it is encrypted to some recipients.
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

// unseal decrypts, or says whose identity that needs.
func unseal(r io.ReaderAt, size int64, what string, recipients []string, with Unsealer) (io.ReaderAt, int64, error) {
	whom := ""
	if len(recipients) > 0 {
		whom = fmt.Sprintf("; it takes the identity of one of %q", recipients)
	}
	if with == nil {
		return nil, 0, fmt.Errorf("%s: %w%s", what, ErrEncrypted, whom)
	}
	plain, n, err := with.Unseal(r, size)
	if errors.Is(err, ErrIdentity) {
		return nil, 0, fmt.Errorf("%s: %w%s", what, err, whom)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("decrypt %s: %w", what, err)
	}
	return plain, n, nil
}
