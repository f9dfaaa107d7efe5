// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"time"
)

const (
	// hedgeDelay is the time without a response after which the next attempt starts, on the client's next connection.
	hedgeDelay = 100 * time.Millisecond
	// hedgedAttempts is the number of attempts in addition to one per endpoint; their delays double.
	hedgedAttempts = 4
)

type attempt[T any] struct {
	value T
	err   error
}

// hedged sends the same request up to `attempts` times, each on the next connection, until it receives a response. It
// returns the first response, or, if all attempts fail, an error (see moreSpecific). outcomeUnknown reports whether
// an attempt was canceled, or failed without a response from etcd. When hedged returns, all attempts have ended.
func hedged[T any](
	ctx context.Context, attempts int, call func(context.Context) (T, error),
) (value T, outcomeUnknown bool, err error) {
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
		if begun > attempts-hedgedAttempts {
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
				return r.value, outcomeUnknown || ended < begun, r.err
			case begun < attempts && ctx.Err() == nil:
				outcomeUnknown, last = true, moreSpecific(last, r.err)
				begin()
				later()
			case ended == begun:
				return r.value, true, moreSpecific(last, r.err)
			default:
				outcomeUnknown, last = true, moreSpecific(last, r.err)
			}
		case <-timer.C:
			if begun < attempts {
				begin()
				later()
			}
		}
	}
}

// moreSpecific returns the newer error, unless only the cause of the older one is known.
func moreSpecific(older, newer error) error {
	if cause(newer) == "" && cause(older) != "" {
		return older
	}
	return newer
}
