// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedianMove(t *testing.T) {
	m := MedianMove([]MoveResult{
		{Round: 1, Pause: 30, Fenced: 5, Rate: 100, P99Ratio: 2},
		{Round: 2, Pause: 10, Fenced: 9, Rate: 300, P99Ratio: 1},
		{Round: 3, Pause: 20, Fenced: 7, Rate: 200, P99Ratio: 4},
	})
	require.Equal(t, MoveResult{
		Round: 3, Pause: 20, Fenced: 7, Rate: 200, P99Ratio: 4, Median: true, PauseMax: 30, FencedMedian: 7, FencedMax: 9,
		RateMedian: 200, RatioMedian: 2,
	}, m)
}
