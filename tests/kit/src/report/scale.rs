//! Axes: where a value lies between the ends, and which values are written beside them.

/// How far apart the largest and the smallest may be where everything begins at nothing.
const LINEAR: f64 = 20.0;

/// An axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    /// From nothing, in steps.
    Linear {
        /// Between two marks.
        step: f64,
        /// How many steps there are.
        steps: u32,
    },
    /// In powers of ten, by their exponents.
    Log {
        /// The first.
        least: i32,
        /// The last.
        most: i32,
    },
}

impl Scale {
    /// A scale on which all of these values are distinguishable.
    pub(crate) fn of(values: &[f64]) -> Self {
        let most = values.iter().copied().fold(0.0, f64::max);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        if least > 0.0 && most / least > LINEAR { Self::log(least, most) } else { Self::linear(most) }
    }

    fn log(least: f64, most: f64) -> Self {
        Self::Log { least: exponent(least, f64::floor), most: exponent(most, f64::ceil) }
    }

    fn linear(most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let power = 10_f64.powi(exponent(most, f64::floor));
        let fits = |step: &f64| most / step <= 5.0;
        let step = [0.2, 0.5, 1.0, 2.0].map(|part| part * power).into_iter().find(fits).unwrap_or(power);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most five")]
        let steps = (most / step).ceil() as u32;
        Self::Linear { step, steps }
    }

    /// Where a value lies: 0 at the lower end, 1 at the upper.
    pub(crate) fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear { step, steps } => value / (step * f64::from(steps)),
            Self::Log { least, most } => (value.max(f64::MIN_POSITIVE).log10() - f64::from(least)) / f64::from(most - least),
        }
    }

    /// The labelled marks.
    pub(crate) fn marks(self) -> Vec<f64> {
        match self {
            Self::Linear { step, steps } => (0..=steps).map(|number| step * f64::from(number)).collect(),
            Self::Log { least, most } => (least..=most).map(|exponent| 10_f64.powi(exponent)).collect(),
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "a power of ten that a measurement can have")]
fn exponent(value: f64, towards: fn(f64) -> f64) -> i32 {
    towards(value.log10()) as i32
}

#[test]
fn narrow_ranges_are_linear_and_wide_ranges_logarithmic() {
    assert_eq!(Scale::of(&[3.0, 11.0]), Scale::Linear { step: 5.0, steps: 3 });
    assert_eq!(Scale::of(&[0.0, 800.0]), Scale::Linear { step: 200.0, steps: 4 });
    assert_eq!(Scale::of(&[0.0]), Scale::Linear { step: 0.2, steps: 5 });
    let log = Scale::of(&[0.02, 9.0]);
    assert_eq!(log.marks(), [0.01, 0.1, 1.0, 10.0]);
    assert!((log.place(1.0) - 2.0 / 3.0).abs() < 1e-9);
}
