//! Drawn numbers, and bytes on their way to a device: every backend has the host's own.

use plimsoll_conformance::backends;
use plimsoll_graph::DType;
use plimsoll_plan::{GPU_STAGING_BYTES, Place, Region};
use plimsoll_runtime::{Distribution, Draw, mix};

fn region(offset: usize, bytes: usize) -> Region {
    Region { place: Place::Device, offset, bytes }
}

#[test]
fn draws_are_the_same_bits_everywhere() {
    let distributions = [
        Distribution::Constant(1.0),
        Distribution::Constant(-0.3),
        Distribution::Uniform { bound: 0.0625 },
        Distribution::Uniform { bound: 0.1 },
        Distribution::Normal { std: 0.02 },
        Distribution::Normal { std: 1.0 },
    ];
    for mut backend in backends() {
        backend.allocate(1 << 20).expect("a little memory");
        for (index, &distribution) in distributions.iter().enumerate() {
            for (dtype, len) in [(DType::F32, 100_003), (DType::BF16, 1), (DType::BF16, 200_001), (DType::F16, 70_007)]
            {
                let draw = Draw { distribution, key: mix(index as u64) };
                let mut expected = vec![0; len * dtype.bytes()];
                draw.fill(dtype, 0, &mut expected);
                let place = region(4096, expected.len());
                backend.fill(region(0, 1 << 20), 0xff).expect("inside the arena");
                backend.draw(place, dtype, draw).expect("inside the arena");
                let mut found = vec![0; expected.len() + 1];
                backend.read(region(4096, found.len()), &mut found).expect("inside the arena");
                let beyond = found.pop();
                let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
                assert_eq!(differs, None, "{distribution:?} as {} on {}", dtype.name(), backend.name());
                assert_eq!(beyond, Some(0xff), "nothing is written beyond");
            }
        }
    }
}

/// Many small writes without a wait between them, and pieces larger than what they pass through.
#[test]
fn what_is_written_arrives_in_order() {
    let total = 3 * GPU_STAGING_BYTES;
    for mut backend in backends() {
        backend.allocate(total).expect("some memory");
        let mut expected = vec![0u8; total];
        let mut state = 1u64;
        let sizes = (0..4000).map(|i| 1 + i * 7 % 20_000).chain([GPU_STAGING_BYTES / 2, GPU_STAGING_BYTES + 5, 1]);
        for size in sizes {
            state = mix(state);
            let offset = state as usize % (total - size);
            let bytes: Vec<u8> = (0..size).map(|i| (state >> (i % 57)) as u8).collect();
            backend.write(region(offset, size), &bytes).expect("inside the arena");
            expected[offset..offset + size].copy_from_slice(&bytes);
        }
        let mut found = vec![0; total];
        backend.read(region(0, total), &mut found).expect("inside the arena");
        assert!(found == expected, "{} mixes writes up", backend.name());
    }
}

/// A filler that fails ends the write with its own error.
#[test]
fn a_failed_fill_is_told() {
    for mut backend in backends() {
        backend.allocate(1 << 20).expect("a little memory");
        let filled = backend.write_with(region(0, 1 << 20), &mut |_, _| Err(std::io::Error::other("gone")));
        assert_eq!(filled.expect("the device is well").expect_err("told").to_string(), "gone");
    }
}
