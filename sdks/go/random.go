package lowkey

import (
	"crypto/rand"
	"encoding/hex"
	mathrand "math/rand/v2"
	"time"
)

// newRequestID makes an id for one operation.
func newRequestID() string {
	return randomHex(16)
}

// randomHex is random text, with two hexadecimal digits for each byte.
func randomHex(bytes int) string {
	buffer := make([]byte, bytes)
	// This never fails: on a system without randomness it ends the program.
	_, _ = rand.Read(buffer)
	return hex.EncodeToString(buffer)
}

const (
	firstBound = 20 * time.Millisecond
	lastBound  = 500 * time.Millisecond
	hintMax    = time.Second
)

// backoff gives pauses between attempts: a random time between zero and a bound that doubles ("full jitter").
// The zero value begins anew.
type backoff struct {
	bound time.Duration
}

// pause is the next pause. A hint of the service adds a quarter of itself.
func (b *backoff) pause(hint time.Duration) time.Duration {
	return b.pauseOf(mathrand.Float64(), hint)
}

// pauseOf is the next pause with this share of the bound.
func (b *backoff) pauseOf(share float64, hint time.Duration) time.Duration {
	bound := max(b.bound, firstBound)
	b.bound = min(bound*2, lastBound)
	return time.Duration(share*float64(bound)) + min(hint, hintMax)/4
}
