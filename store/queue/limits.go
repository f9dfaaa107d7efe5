// SPDX-License-Identifier: Apache-2.0

package queue

const (
	// MaxQueues is the maximum number of queues of a store.
	MaxQueues = 1_000_000
	// MaxMeta is the maximum number of internal entries of the cluster.
	MaxMeta = 1000
	// MaxAccess is the maximum number of entries of the access table.
	MaxAccess = 10_000
	// MaxReleased is the maximum number of messages that one transaction may release.
	MaxReleased = 65_536
	// MaxExtentSpan is the maximum number of sequences (first to last, including dead ones in between) of one extent in
	// the page file. DeadRange.AllDead does not cover longer extents.
	MaxExtentSpan = ChunkSize

	// MaxPrepared is the maximum number of undecided prepared transactions.
	MaxPrepared = 10_000
	// MaxPreparedBytes is the maximum total encoded length of all prepared transactions.
	MaxPreparedBytes = 256 << 20
	// MaxTaken is the maximum number of messages that one transaction may acknowledge on condition that they are
	// unacknowledged. A prepared transaction does so for all its messages.
	MaxTaken = 262_144
	// PreparedOutcomes is the number of decided transactions whose outcomes are kept.
	PreparedOutcomes = 10_000

	// ProducerWindow is the number of results kept per producer: the maximum number of its outstanding transactions.
	ProducerWindow = 256
	// MaxProducers is the maximum number of producers kept. The least recently used one, in log order, is forgotten
	// first; no clock is involved.
	MaxProducers = 100_000

	// maxProducerOps is the maximum number of operation results kept per producer. It bounds the memory of a producer
	// with large transactions.
	maxProducerOps = 4096
	// maxProducersOps is the same limit over all producers. Beyond it, the least recently used producers lose their
	// results but not their sequence: their retries return ErrTooOld.
	maxProducersOps = 1 << 19
)

// limits are the limits that tests can lower.
type limits struct {
	queues, meta, access              int
	released, taken                   int
	prepared, preparedBytes, outcomes int
	producers, producerOps, totalOps  int
	producerWindow, evictionThreshold int
}

func defaultLimits() limits {
	return limits{
		queues: MaxQueues, meta: MaxMeta, access: MaxAccess, released: MaxReleased, taken: MaxTaken,
		prepared: MaxPrepared, preparedBytes: MaxPreparedBytes, outcomes: PreparedOutcomes,
		producers: MaxProducers, producerOps: maxProducerOps, totalOps: maxProducersOps,
		producerWindow: ProducerWindow, evictionThreshold: ProducerWindow,
	}
}
