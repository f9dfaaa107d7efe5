// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"time"
)

const (
	// hedgeDelay after which the next attempt of a request is begun if the one before it has no answer yet. The client
	// spreads requests over its connections in turn, so the next one takes another. A healthy etcd answers in a few
	// milliseconds.
	hedgeDelay = 100 * time.Millisecond
	// laterAttempts are made besides one per endpoint, each twice as long after the one before as that.
	laterAttempts = 4
)

// outcome of one attempt.
type attempt[T any] struct {
	value T
	err   error
}

// hedged makes the same request up to `attempts` times, each on the next connection, until one is answered: an endpoint
// that takes requests and never answers must not cost a failover the time until it is noticed. It returns the first
// answer, or the last error. doubt tells that the outcome of some attempt is not known: it was given up, or failed
// without an answer of etcd's. No attempt is running any more when it returns.
func hedged[T any](
	ctx context.Context, attempts int, call func(context.Context) (T, error),
) (value T, doubt bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan attempt[T], attempts)
	begun, ended := 0, 0
	var last error
	begin := func() {
		begun++
		go func() {
			v, err := call(ctx)
			results <- attempt[T]{v, err}
		}()
	}
	defer func() {
		cancel()
		for ; ended < begun; ended++ {
			<-results
		}
	}()
	delay := hedgeDelay
	timer := time.NewTimer(delay)
	defer timer.Stop()
	later := func() {
		if begun > attempts-laterAttempts {
			delay *= 2
		}
		timer.Reset(delay)
	}
	begin()
	for {
		select {
		case r := <-results:
			ended++
			switch {
			case r.err == nil || refuses(r.err):
				return r.value, doubt || ended < begun, r.err
			case begun < attempts && ctx.Err() == nil:
				doubt, last = true, telling(last, r.err)
				begin()
				later()
			case ended == begun:
				return r.value, true, telling(last, r.err)
			default:
				doubt, last = true, telling(last, r.err)
			}
		case <-timer.C:
			if begun < attempts {
				begin()
				later()
			}
		}
	}
}

// telling is the newer error, unless only the older one says what to do.
func telling(older, newer error) error {
	if cause(newer) == "" && cause(older) != "" {
		return older
	}
	return newer
}
