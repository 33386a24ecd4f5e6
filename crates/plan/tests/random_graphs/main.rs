//! Plans for random programs hold, and the verifier tells a plan that holds from one that does not.

mod generator;
mod memory;
mod soundness;
#[path = "../symbols/mod.rs"]
mod symbols;
mod tampering;

use proptest::test_runner::{Config, RngSeed};

/// The same programs in every run; `PROPTEST_CASES` and `PROPTEST_RNG_SEED` try others.
fn config() -> Config {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(7);
    }
    config
}
