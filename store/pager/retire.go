// SPDX-License-Identifier: Apache-2.0

package pager

import (
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/store/page"
)

const retireEvery = 50 * time.Millisecond

type retired struct {
	stop   chan struct{}
	joined sync.WaitGroup
}

// add starts a goroutine that closes a replaced page file when it has no readers, or when close is called.
func (r *retired) add(file *page.File, failed func(error)) {
	r.joined.Go(func() {
		tick := time.NewTicker(retireEvery)
		defer tick.Stop()
		for st := file.Stats(); st.Pins+st.Guards > 0; st = file.Stats() {
			select {
			case <-tick.C:
				continue
			case <-r.stop:
			}
			break
		}
		if err := file.Close(); err != nil {
			failed(err)
		}
	})
}

// close closes all replaced page files and waits until they are closed, even if they have readers. It must not be
// called concurrently with add.
func (r *retired) close() {
	close(r.stop)
	r.joined.Wait()
}
