package lowkey

import "container/heap"

// alarm is a moment at which something is due with an item. The zero value is not set.
type alarm[T any] struct {
	at    int64
	item  T
	place int // its place in the heap, from 1; 0 if it is not set
}

func (a *alarm[T]) isSet() bool { return a.place != 0 }

// alarms are the moments of many items, the earliest first. An alarm belongs to one of these only.
type alarms[T any] struct {
	heap alarmHeap[T]
}

// set plans an alarm, or moves one that is planned.
func (s *alarms[T]) set(a *alarm[T], at int64) {
	a.at = at
	if a.isSet() {
		heap.Fix(&s.heap, a.place-1)
	} else {
		heap.Push(&s.heap, a)
	}
}

// unset takes an alarm back, if it is set.
func (s *alarms[T]) unset(a *alarm[T]) {
	if a.isSet() {
		heap.Remove(&s.heap, a.place-1)
	}
}

// first is the earliest alarm, or nil.
func (s *alarms[T]) first() *alarm[T] {
	if len(s.heap) == 0 {
		return nil
	}
	return s.heap[0]
}

// takeDue takes the earliest alarm if it is due by now, or returns nil.
func (s *alarms[T]) takeDue(now int64) *alarm[T] {
	first := s.first()
	if first == nil || first.at > now {
		return nil
	}
	s.unset(first)
	return first
}

func (s *alarms[T]) clear() {
	for _, a := range s.heap {
		a.place = 0
	}
	s.heap = nil
}

// alarmHeap implements heap.Interface.
type alarmHeap[T any] []*alarm[T]

func (h alarmHeap[T]) Len() int           { return len(h) }
func (h alarmHeap[T]) Less(i, j int) bool { return h[i].at < h[j].at }
func (h alarmHeap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h *alarmHeap[T]) Push(x any) {
	a := x.(*alarm[T])
	*h = append(*h, a)
	a.place = len(*h)
}

func (h *alarmHeap[T]) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	a.place = 0
	return a
}
