//! The one source of chance in a world: SplitMix64, from one seed.

/// A seeded generator. The same seed gives the same numbers on every machine, for ever.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `from..to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        debug_assert!(from < to);
        from + self.next() % (to - from)
    }

    /// True once in `one_in` times; never for 0.
    pub fn one_in(&mut self, one_in: u64) -> bool {
        one_in != 0 && self.next().is_multiple_of(one_in)
    }

    /// An exponentially distributed span with this mean: how long until something happens that
    /// happens so often.
    pub fn span(&mut self, mean: u64) -> u64 {
        // The logarithm of a uniform number, by its leading zeros and a linear rest: no floats, so
        // that every machine agrees.
        let draw = self.next() | 1;
        let zeros = u64::from(draw.leading_zeros());
        let rest = 256 - ((draw << zeros) >> 55 & 0xff);
        // Mean of -log2(u) is 1.44; 177/256 brings it back to one.
        let scaled = (zeros * 256 + rest) * 177 / 256;
        (mean / 256).max(1).saturating_mul(scaled)
    }

    /// One of some; there must be one.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let at = self.next() % choices.len() as u64;
        &choices[at as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_about_the_mean_that_was_asked_for() {
        let mut random = Random::new(1);
        let total: u64 = (0..10_000).map(|_| random.span(1_000_000)).sum();
        let mean = total / 10_000;
        assert!((900_000..1_100_000).contains(&mean), "{mean}");
    }
}
