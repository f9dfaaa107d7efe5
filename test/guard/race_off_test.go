//go:build !race

package guard

// raceFactor is what allocations may be multiplied with.
const raceFactor = 1
