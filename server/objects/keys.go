// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"filippo.io/age"

	"github.com/lockstep-mq/lockstep/store/backup"
)

// ErrKey is returned for what is no recipient, and no file of identities.
var ErrKey = errors.New("it is no key of age (https://age-encryption.org)")

// recipients encrypt.
type recipients struct {
	keys  []age.Recipient
	names []string
}

// ParseRecipients makes what encrypts save-sets and archives for the owners of these public keys, age1…; nil for none.
// ErrKey.
func ParseRecipients(keys []string) (backup.Sealer, error) {
	if len(keys) == 0 {
		return nil, nil //nolint:nilnil // nothing is encrypted
	}
	r := &recipients{names: keys}
	for _, k := range keys {
		if strings.HasPrefix(strings.ToUpper(k), "AGE-SECRET-KEY-") || strings.HasPrefix(strings.ToUpper(k), "AGE-PLUGIN-") {
			return nil, fmt.Errorf("%w: a recipient is a public key, age1…; this is a secret one, which does not belong "+
				"on a node: take what age-keygen -y says of it", ErrKey)
		}
		parsed, err := age.ParseRecipients(strings.NewReader(k))
		if err != nil || len(parsed) != 1 {
			return nil, fmt.Errorf("%w: a recipient is a public key, age1…, and not %q", ErrKey, k)
		}
		r.keys = append(r.keys, parsed[0])
	}
	return r, nil
}

func (r *recipients) Recipients() []string { return r.names }

func (r *recipients) Seal(w io.Writer) (io.WriteCloser, error) {
	out, err := age.Encrypt(w, r.keys...)
	if err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	return out, nil
}

// identities decrypt.
type identities struct{ keys []age.Identity }

// ReadIdentities reads files of secret keys, as age-keygen writes them; nil for none. No error tells what is in a file.
// ErrKey.
func ReadIdentities(files ...string) (backup.Unsealer, error) {
	var all identities
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read the identity: %w", err)
		}
		keys, err := age.ParseIdentities(f)
		_ = f.Close() // opened for reading: nothing can be lost
		if err != nil {
			return nil, fmt.Errorf("%s: %w: a file of identities has AGE-SECRET-KEY-… on its lines", path, ErrKey)
		}
		all.keys = append(all.keys, keys...)
	}
	if len(all.keys) == 0 {
		return nil, nil //nolint:nilnil // nothing is decrypted
	}
	return all, nil
}

// Unseal decrypts.
func (i identities) Unseal(r io.ReaderAt, size int64) (io.ReaderAt, int64, error) {
	plain, n, err := age.DecryptReaderAt(r, size, i.keys...)
	var none *age.NoIdentityMatchError
	if errors.As(err, &none) {
		return nil, 0, backup.ErrIdentity
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", backup.ErrDamagedSet, err)
	}
	return damageOf{plain}, n, nil
}

// damageOf makes of what is not what was encrypted a damaged set.
type damageOf struct{ io.ReaderAt }

func (d damageOf) ReadAt(b []byte, off int64) (int, error) {
	n, err := d.ReaderAt.ReadAt(b, off)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, backup.ErrRemote) {
		err = fmt.Errorf("%w: %w", backup.ErrDamagedSet, err)
	}
	return n, err
}
