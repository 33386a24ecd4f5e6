//! Memory budgets and lengths that may be absolute or a share.

use std::fmt;

const KIB: f64 = 1024.0;

/// A memory budget as the user wrote it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// What the machine has free.
    Auto,
    Bytes(u64),
    /// A share of what is free, above 0 and up to 100.
    Percent(f64),
}

/// The host's memory budget, by the kind of device that trains: on a GPU, driver and libraries take host memory too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostBudget {
    pub cpu: Budget,
    pub gpu: Budget,
}

impl HostBudget {
    pub fn both(budget: Budget) -> Self {
        Self { cpu: budget, gpu: budget }
    }
}

/// A stretch of training: a fraction of the run (below 1) or a number of steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    Fraction(f64),
    Steps(u64),
}

impl Span {
    /// In steps of a run of `total`, rounded to the nearest.
    pub fn steps(self, total: u64) -> u64 {
        match self {
            Self::Fraction(fraction) => (fraction * total as f64).round() as u64,
            Self::Steps(steps) => steps,
        }
    }
}

/// Why a text is not a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetError {
    /// Zero or below: nothing could run in it.
    NotPositive,
    /// A unit such as `G`, which some read as GB and others as GiB.
    AmbiguousUnit,
    /// More than 100 %.
    AboveAll,
    Malformed,
}

impl Budget {
    pub fn parse(text: &str) -> Result<Self, BudgetError> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        let digits =
            text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_' | '+' | '-'))).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: f64 = number.replace('_', "").parse().map_err(|_| BudgetError::Malformed)?;
        let unit = unit.trim();
        if unit == "%" {
            return percent(number);
        }
        let scale = scale(unit)?;
        let bytes = (number * scale).round();
        if bytes < 1.0 {
            return Err(BudgetError::NotPositive);
        }
        if bytes >= u64::MAX as f64 {
            return Err(BudgetError::Malformed);
        }
        Ok(Self::Bytes(bytes as u64))
    }

    /// The budget in bytes on a machine where `free_bytes` are free.
    pub fn bytes_of(self, free_bytes: u64) -> u64 {
        match self {
            Self::Auto => free_bytes,
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (free_bytes as f64 * percent / 100.0) as u64,
        }
    }
}

fn percent(number: f64) -> Result<Budget, BudgetError> {
    if number <= 0.0 {
        Err(BudgetError::NotPositive)
    } else if number > 100.0 {
        Err(BudgetError::AboveAll)
    } else {
        Ok(Budget::Percent(number))
    }
}

fn scale(unit: &str) -> Result<f64, BudgetError> {
    Ok(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        "kib" => KIB,
        "mib" => KIB.powi(2),
        "gib" => KIB.powi(3),
        "tib" => KIB.powi(4),
        "k" | "m" | "g" | "t" => return Err(BudgetError::AmbiguousUnit),
        _ => return Err(BudgetError::Malformed),
    })
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPositive => "a budget must be above 0; omit it or set `auto` to use the available memory",
            Self::AmbiguousUnit => "use `GiB` (1024 MiB) or `GB` (1000 MB)",
            Self::AboveAll => "a percentage of the available memory is at most `100%`",
            Self::Malformed => "for example `12GiB`, `16GB`, `512MiB`, `80%` or `auto`",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets() {
        use BudgetError::*;
        let check = |text: &str, expected: Result<Budget, BudgetError>| {
            assert_eq!(Budget::parse(text), expected, "{text}");
        };
        check("auto", Ok(Budget::Auto));
        check("12GiB", Ok(Budget::Bytes(12 << 30)));
        check("12 GiB", Ok(Budget::Bytes(12 << 30)));
        check("16GB", Ok(Budget::Bytes(16_000_000_000)));
        check("512MiB", Ok(Budget::Bytes(512 << 20)));
        check("512mib", Ok(Budget::Bytes(512 << 20)));
        check("1.5GiB", Ok(Budget::Bytes(3 << 29)));
        check("1073741824", Ok(Budget::Bytes(1 << 30)));
        check("1_000B", Ok(Budget::Bytes(1000)));
        check("80%", Ok(Budget::Percent(80.0)));
        check("0", Err(NotPositive));
        check("0GiB", Err(NotPositive));
        check("-1GiB", Err(NotPositive));
        check("0%", Err(NotPositive));
        check("101%", Err(AboveAll));
        check("12G", Err(AmbiguousUnit));
        check("12 parsecs", Err(Malformed));
        check("GiB", Err(Malformed));
        check("", Err(Malformed));
        check("nan", Err(Malformed));
        check("99999999TiB", Err(Malformed));
    }

    #[test]
    fn shares_of_what_is_free() {
        assert_eq!(Budget::Auto.bytes_of(1000), 1000);
        assert_eq!(Budget::Percent(80.0).bytes_of(1000), 800);
        assert_eq!(Budget::Bytes(5).bytes_of(1000), 5);
        assert_eq!(Span::Fraction(0.1).steps(1000), 100);
        assert_eq!(Span::Steps(7).steps(1000), 7);
    }
}
