// SPDX-License-Identifier: Apache-2.0

package objectstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"filippo.io/age"

	"github.com/lockstep-mq/lockstep/store/backup"
)

// ErrKey is returned for an invalid public key or identity file.
var ErrKey = errors.New("invalid age key (https://age-encryption.org)")

type recipients struct {
	keys  []age.Recipient
	names []string
}

// ParseRecipients returns a Sealer that encrypts backups and archives for the given age public keys (age1…). It
// returns nil without keys, and ErrKey for an invalid key.
func ParseRecipients(keys []string) (backup.Sealer, error) {
	if len(keys) == 0 {
		return nil, nil //nolint:nilnil // nothing is encrypted
	}
	r := &recipients{names: keys}
	for _, k := range keys {
		if strings.HasPrefix(strings.ToUpper(k), "AGE-SECRET-KEY-") || strings.HasPrefix(strings.ToUpper(k), "AGE-PLUGIN-") {
			return nil, fmt.Errorf("%w: recipient must be a public key, age1…, not a secret key; do not store secret keys "+
				"on a node: use the output of age-keygen -y", ErrKey)
		}
		parsed, err := age.ParseRecipients(strings.NewReader(k))
		if err != nil || len(parsed) != 1 {
			return nil, fmt.Errorf("%w: recipient must be a public key, age1…, not %q", ErrKey, k)
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

type identities struct{ keys []age.Identity }

// ReadIdentities reads files with secret keys in the format of age-keygen. It returns nil without files, and
// ErrKey for an invalid file. Errors do not contain the content of files.
func ReadIdentities(files ...string) (backup.Unsealer, error) {
	var all identities
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read the identity: %w", err)
		}
		keys, err := age.ParseIdentities(f)
		_ = f.Close() // opened for reading: no data can be lost
		if err != nil {
			return nil, fmt.Errorf("%s: %w: identity file must contain AGE-SECRET-KEY-… lines", path, ErrKey)
		}
		all.keys = append(all.keys, keys...)
	}
	if len(all.keys) == 0 {
		return nil, nil //nolint:nilnil // nothing is decrypted
	}
	return all, nil
}

func (i identities) Unseal(r io.ReaderAt, size int64) (io.ReaderAt, int64, error) {
	plain, n, err := age.DecryptReaderAt(r, size, i.keys...)
	if _, none := errors.AsType[*age.NoIdentityMatchError](err); none {
		return nil, 0, backup.ErrIdentity
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", backup.ErrCorrupt, err)
	}
	return corruptReader{plain}, n, nil
}

// corruptReader reports a failed decryption as backup.ErrCorrupt.
type corruptReader struct{ io.ReaderAt }

func (d corruptReader) ReadAt(b []byte, off int64) (int, error) {
	n, err := d.ReaderAt.ReadAt(b, off)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, backup.ErrRemote) {
		err = fmt.Errorf("%w: %w", backup.ErrCorrupt, err)
	}
	return n, err
}
