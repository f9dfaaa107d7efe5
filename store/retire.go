// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/store/page"
)

// retireEvery is how often a replaced page file is looked at for readers.
const retireEvery = 50 * time.Millisecond

// retired are page files that were replaced and still have readers.
type retired struct {
	stop   chan struct{} // closed by close
	joined sync.WaitGroup
}

// add closes a page file that was replaced as soon as nothing reads it any more: a snapshot that was opened before goes
// on.
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

// close closes the files that are left, and waits for that. No other is added meanwhile.
func (r *retired) close() {
	close(r.stop)
	r.joined.Wait()
}
