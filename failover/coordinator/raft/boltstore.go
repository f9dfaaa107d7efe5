// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/go-msgpack/v2/codec"
	hraft "github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

const (
	logsBucket = "logs"
	confBucket = "conf"

	// Keys of hashicorp/raft in confBucket.
	currentTermKey = "CurrentTerm"
	voteTermKey    = "LastVoteTerm"
)

// errVoted is returned for a second vote in a term, or a vote in an earlier term.
var errVoted = errors.New("this voter has voted in this or a newer term")

// errKeyNotFound is returned for a missing key. hashicorp/raft compares its text.
var errKeyNotFound = errors.New("not found")

// boltStore implements the log store and the stable store of hashicorp/raft in a bbolt file. The file has the format of
// github.com/hashicorp/raft-boltdb/v2, which 0.1.0 used: keys are big-endian, and log entries are MessagePack, with
// times encoded by time.Time.MarshalBinary.
type boltStore struct{ db *bbolt.DB }

func openBoltStore(path string, noSync bool) (*boltStore, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: lockLimit, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, NoSync: noSync,
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller adds the path
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists([]byte(logsBucket))
		_, cerr := tx.CreateBucketIfNotExists([]byte(confBucket))
		return errors.Join(err, cerr)
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &boltStore{db}, nil
}

func (s *boltStore) Close() error { return s.db.Close() } //nolint:wrapcheck // the caller adds the path

func (s *boltStore) FirstIndex() (uint64, error) { return s.index((*bbolt.Cursor).First) }

func (s *boltStore) LastIndex() (uint64, error) { return s.index((*bbolt.Cursor).Last) }

func (s *boltStore) index(seek func(*bbolt.Cursor) (key, value []byte)) (index uint64, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		if key, _ := seek(tx.Bucket([]byte(logsBucket)).Cursor()); key != nil {
			index = binary.BigEndian.Uint64(key)
		}
		return nil
	})
	return index, err //nolint:wrapcheck // the caller adds the path
}

// GetLog reads a log entry into entry. It returns hraft.ErrLogNotFound if the entry does not exist.
func (s *boltStore) GetLog(index uint64, entry *hraft.Log) error {
	return s.db.View(func(tx *bbolt.Tx) error { //nolint:wrapcheck // the caller adds the path
		value := tx.Bucket([]byte(logsBucket)).Get(key(index))
		if value == nil {
			return hraft.ErrLogNotFound
		}
		if err := codec.NewDecoderBytes(value, logFormat()).Decode(entry); err != nil {
			return fmt.Errorf("log entry %d: %w", index, err)
		}
		return nil
	})
}

func logFormat() *codec.MsgpackHandle {
	h := new(codec.MsgpackHandle)
	h.TimeNotBuiltin = true
	return h
}

func (s *boltStore) StoreLog(entry *hraft.Log) error { return s.StoreLogs([]*hraft.Log{entry}) }

func (s *boltStore) StoreLogs(entries []*hraft.Log) error {
	return s.db.Update(func(tx *bbolt.Tx) error { //nolint:wrapcheck // raft adds nothing
		for _, entry := range entries {
			var value []byte
			if err := codec.NewEncoderBytes(&value, logFormat()).Encode(entry); err != nil {
				return fmt.Errorf("log entry %d: %w", entry.Index, err)
			}
			if err := tx.Bucket([]byte(logsBucket)).Put(key(entry.Index), value); err != nil {
				return fmt.Errorf("log entry %d: %w", entry.Index, err)
			}
		}
		return nil
	})
}

func (s *boltStore) DeleteRange(first, last uint64) error {
	return s.db.Update(func(tx *bbolt.Tx) error { //nolint:wrapcheck // raft adds nothing
		c := tx.Bucket([]byte(logsBucket)).Cursor()
		for k, _ := c.Seek(key(first)); k != nil && binary.BigEndian.Uint64(k) <= last; k, _ = c.Next() {
			if err := c.Delete(); err != nil {
				return fmt.Errorf("delete log entries: %w", err)
			}
		}
		return nil
	})
}

func (s *boltStore) Set(key, value []byte) error {
	return s.db.Update(func(tx *bbolt.Tx) error { //nolint:wrapcheck // the caller adds the path
		return tx.Bucket([]byte(confBucket)).Put(key, value)
	})
}

func (s *boltStore) Get(key []byte) (value []byte, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		stored := tx.Bucket([]byte(confBucket)).Get(key)
		if stored == nil {
			return errKeyNotFound
		}
		value = append(value, stored...)
		return nil
	})
	return value, err //nolint:wrapcheck // raft compares the text
}

// SetUint64 stores a number. For the term of a vote, it returns errVoted unless the term is higher than the stored
// one.
func (s *boltStore) SetUint64(name []byte, n uint64) error {
	if string(name) != voteTermKey {
		return s.Set(name, key(n))
	}
	return s.db.Update(func(tx *bbolt.Tx) error { //nolint:wrapcheck // the caller adds the path
		b := tx.Bucket([]byte(confBucket))
		if have := b.Get(name); len(have) == 8 && n <= binary.BigEndian.Uint64(have) {
			return fmt.Errorf("%w: term %d, last vote in term %d", errVoted, n, binary.BigEndian.Uint64(have))
		}
		return b.Put(name, key(n))
	})
}

func (s *boltStore) GetUint64(name []byte) (uint64, error) {
	value, err := s.Get(name)
	if err == nil && len(value) != 8 {
		err = fmt.Errorf("%s has %d bytes instead of 8", name, len(value))
	}
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(value), nil
}

// key returns the key of a log entry. Numbers in the stable store have the same encoding.
func key(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }
