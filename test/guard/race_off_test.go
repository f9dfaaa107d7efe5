//go:build !race

package guard

// raceFactor is what the limits are multiplied with.
const raceFactor = 1
