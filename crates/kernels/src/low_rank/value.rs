//! Loading of factor values as lanes.

use half::f16;

use crate::lanes::{LANES, Lanes, Vectors, WIDE, WideLanes};

/// Value of a factor; widened to f32 exactly.
pub(super) trait Value: Copy {
    const IS_F32: bool = false;

    fn load<L: Lanes>(l: L, x: &[Self; LANES]) -> L::V;
    /// At most eight values, padded with zeros.
    fn load_partial<L: Lanes>(l: L, x: &[Self]) -> L::V;
    fn load_wide<L: WideLanes>(l: L, x: &[Self; WIDE]) -> L::W;
}

impl Value for f32 {
    const IS_F32: bool = true;

    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[Self; LANES]) -> L::V {
        l.load(x)
    }

    #[inline(always)]
    fn load_partial<L: Lanes>(l: L, x: &[Self]) -> L::V {
        l.load_partial(x)
    }

    #[inline(always)]
    fn load_wide<L: WideLanes>(l: L, x: &[Self; WIDE]) -> L::W {
        l.wide().load(x.as_chunks::<LANES>().0.first_chunk().expect("two groups"))
    }
}

impl Value for f16 {
    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[Self; LANES]) -> L::V {
        l.load_f16(x)
    }

    #[inline(always)]
    fn load_partial<L: Lanes>(l: L, x: &[Self]) -> L::V {
        l.load_partial_f16(x)
    }

    #[inline(always)]
    fn load_wide<L: WideLanes>(l: L, x: &[Self; WIDE]) -> L::W {
        l.wide().load_f16(x)
    }
}

impl Value for i8 {
    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[Self; LANES]) -> L::V {
        l.load_i8(x)
    }

    #[inline(always)]
    fn load_partial<L: Lanes>(l: L, x: &[Self]) -> L::V {
        let mut full = [0; LANES];
        full[..x.len()].copy_from_slice(x);
        l.load_i8(&full)
    }

    #[inline(always)]
    fn load_wide<L: WideLanes>(l: L, x: &[Self; WIDE]) -> L::W {
        l.wide().load_i8(x)
    }
}
