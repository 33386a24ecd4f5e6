//! Weights in few bits on their way from files and draws into the memory of every backend, held against what bitsandbytes,
//! compressed-tensors and PyTorch store. The files are made by `fixtures/make_formats.py`.

use std::path::{Path, PathBuf};

use half::bf16;
use plimsoll_conformance::backends;
use plimsoll_cpu::CpuBackend;
use plimsoll_graph::{BackendTraits, BlockFormat, DType, Shape, WeightFormat};
use plimsoll_plan::{Place, Region, Step};
use plimsoll_runtime::codec::CodedWeight;
use plimsoll_runtime::weights::{
    Checkpoint, CodedPlace, OutTensor, StoredType, WeightError, safetensors_bytes, safetensors_header,
    write_safetensors,
};
use plimsoll_runtime::{Active, Backend, Distribution, Draw, RuntimeError, mix};

const FORMATS: [(WeightFormat, &str); 3] =
    [(WeightFormat::Nf4, "nf4"), (WeightFormat::Int8, "int8"), (WeightFormat::E4m3, "fp8")];
const TENSORS: [(&str, [usize; 2]); 3] =
    [("even.weight", [128, 128]), ("wide.weight", [64, 256]), ("few.weight", [96, 64])];
const ARENA_BYTES: usize = 16 << 20;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats")
}

fn open(stem: &str) -> Checkpoint {
    Checkpoint::open(&fixtures(), stem).unwrap_or_else(|error| panic!("{error}"))
}

/// A backend whose memory the host cannot address.
struct Remote(CpuBackend);

impl Backend for Remote {
    fn name(&self) -> &str {
        "remote"
    }

    fn traits(&self) -> BackendTraits {
        self.0.traits()
    }

    fn allocate(&mut self, bytes: usize) -> Result<(), RuntimeError> {
        self.0.allocate(bytes)
    }

    fn run(&mut self, step: &Step, active: Active) -> Result<(), RuntimeError> {
        self.0.run(step, active)
    }

    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.0.write(region, bytes)
    }

    fn read(&self, region: Region, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        self.0.read(region, bytes)
    }

    fn host_bytes(&mut self, _: Region) -> Option<&mut [u8]> {
        None
    }
}

/// All backends with some memory, and one that only copies to it.
fn devices() -> Vec<Box<dyn Backend>> {
    let mut all = backends();
    all.push(Box::new(Remote(CpuBackend::new(Some(1)))));
    all.iter_mut().for_each(|backend| backend.allocate(ARENA_BYTES).expect("some memory"));
    all
}

/// A weight of matrices of this shape, one below the other.
struct Weight {
    format: BlockFormat,
    elements: usize,
    region: Region,
    matrix: Shape,
}

impl Weight {
    fn new(format: WeightFormat, matrix: [usize; 2], matrices: usize) -> Self {
        let matrix = Shape::new(&matrix);
        let storage = format.storage(DType::F32, &vec![matrix; matrices]).expect("whole blocks");
        let shape = Shape::new(&[matrices * matrix.rows(), matrix.cols()]);
        let bytes = storage.bytes(&shape).expect("small");
        let region = Region { place: Place::Device, offset: 4096, bytes };
        Self { format: storage.blocks.expect("blocks"), elements: shape.elements(), region, matrix }
    }

    fn place(&self, matrix: usize) -> CodedPlace {
        let elements = self.matrix.elements();
        let (format, region, weight_elements) = (self.format, self.region, self.elements);
        CodedPlace { format, region, weight_elements, first: matrix * elements, elements }
    }

    /// Its bytes once it is filled in, which begins with all bits set.
    fn after(
        &self,
        backend: &mut dyn Backend,
        fill: impl FnOnce(&mut dyn Backend) -> Result<(), WeightError>,
    ) -> Result<Vec<u8>, WeightError> {
        backend.write(self.region, &vec![0xff; self.region.bytes])?;
        fill(backend)?;
        let mut bytes = vec![0; self.region.bytes];
        backend.read(self.region, &mut bytes)?;
        Ok(bytes)
    }

    fn decoded(&self, bytes: &[u8]) -> Vec<f32> {
        let mut numbers = vec![f32::NAN; self.elements];
        CodedWeight::new(self.format, self.elements, bytes).expect("all bytes").decode(0, &mut numbers);
        numbers
    }
}

fn assert_same<T: PartialEq + std::fmt::Debug>(found: &[T], expected: &[T], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differing = found.iter().zip(expected).enumerate().find(|(_, (a, b))| a != b);
    assert!(differing.is_none(), "{what}: at {differing:?}");
}

/// What is encoded here is what others store, and both are what they decode to.
#[test]
fn folders_of_others_hold_what_is_encoded_here() {
    let plain = open("plain");
    for mut backend in devices() {
        for (format, stem) in FORMATS {
            for (name, shape) in TENSORS {
                let stored = open(stem);
                let weight = Weight::new(format, shape, 1);
                let what = format!("{name} in {stem} on {}", backend.name());
                let mut load = |files: &Checkpoint| {
                    let fill =
                        |backend: &mut dyn Backend| files.load_coded(name, &weight.matrix, &weight.place(0), backend);
                    weight.after(backend.as_mut(), fill).unwrap_or_else(|error| panic!("{what}: {error}"))
                };
                // Of few elements, nested scales are stored as what they come to.
                let (encoded, loaded) = (load(&plain), load(&stored));
                // Scales in bfloat16 and of whole tensors are others.
                if format != WeightFormat::E4m3 || name == "even.weight" {
                    assert_same(&loaded, &encoded, &what);
                }
                let mut numbers = vec![0.0; weight.elements];
                stored.read(name, &weight.matrix, 0, &mut numbers).expect("readable");
                assert_same(&numbers, &weight.decoded(&loaded), &what);
                let mut part = vec![0.0; 1000];
                stored.read(name, &weight.matrix, 777, &mut part).expect("readable");
                assert_same(&part, &numbers[777..1777], &what);
            }
        }
    }
}

/// Where weights are not to be stored in few bits, they are decoded, and rounded once.
#[test]
fn folders_of_others_can_be_decoded() {
    let (stored, decoded) = (open("nf4"), open("nf4_decoded"));
    for mut backend in devices() {
        for (name, shape) in TENSORS {
            let shape = Shape::new(&shape);
            let region = Region { place: Place::Device, offset: 256, bytes: 2 * shape.elements() };
            stored.load(name, &shape, DType::BF16, region, backend.as_mut()).expect("readable");
            let mut found = vec![0; region.bytes];
            backend.read(region, &mut found).expect("inside the arena");
            let mut expected = vec![0.0; shape.elements()];
            decoded.read(name, &shape, 0, &mut expected).expect("readable");
            let expected: Vec<u8> = expected.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
            assert_same(&found, &expected, &format!("{name} on {}", backend.name()));
        }
    }
}

/// Scales that are not nested are taken as they are, where there is room for such.
#[test]
fn scales_that_are_not_nested_stay_so() {
    let (plain, stored) = (open("plain"), open("nf4_single"));
    let weight = Weight::new(WeightFormat::Nf4, [96, 64], 1);
    let mut numbers = vec![0.0; weight.elements];
    plain.read("few.weight", &weight.matrix, 0, &mut numbers).expect("readable");
    let largest = |block: &[f32]| block.iter().fold(0f32, |most, x| most.max(x.abs()));
    let scales: Vec<u8> = numbers.chunks(64).flat_map(|block| largest(block).to_le_bytes()).collect();
    for mut backend in devices() {
        let fill =
            |backend: &mut dyn Backend| stored.load_coded("few.weight", &weight.matrix, &weight.place(0), backend);
        let bytes = weight.after(backend.as_mut(), fill).expect("readable");
        assert_same(&bytes[weight.elements / 2..], &scales, backend.name());
    }
}

/// Each matrix of a weight has scales of its own, and nothing beside its place changes.
#[test]
fn matrices_below_each_other_are_as_they_are_alone() {
    for mut backend in devices() {
        for ((format, stem), (name, shape)) in FORMATS.into_iter().flat_map(|f| TENSORS.map(|t| (f, t))) {
            let (stored, plain) = (open(stem), open("plain"));
            let (alone, both) = (Weight::new(format, shape, 1), Weight::new(format, shape, 3));
            let of_one = alone
                .after(backend.as_mut(), |backend| stored.load_coded(name, &alone.matrix, &alone.place(0), backend));
            let of_plain = alone
                .after(backend.as_mut(), |backend| plain.load_coded(name, &alone.matrix, &alone.place(0), backend));
            let one = alone.decoded(&of_one.expect("readable"));
            let encoded = alone.decoded(&of_plain.expect("readable"));
            let bytes = both.after(backend.as_mut(), |backend| {
                stored.load_coded(name, &alone.matrix, &both.place(2), backend)?;
                plain.load_coded(name, &alone.matrix, &both.place(0), backend)?;
                let draw = Draw { distribution: Distribution::Constant(0.0), key: 0 };
                Ok(both.place(1).draw(draw, 0, backend)?)
            });
            let found = both.decoded(&bytes.expect("readable"));
            let what = format!("{name} in {stem} on {}", backend.name());
            assert_same(&found, &[encoded, vec![0.0; alone.elements], one].concat(), &what);
        }
    }
}

/// Files get the numbers that codes stand for, in pieces that end within a row.
#[test]
fn weights_are_written_decoded() {
    for mut backend in devices() {
        for (format, stem) in FORMATS {
            let weight = Weight::new(format, [1024, 768], 2);
            let draw = Draw { distribution: Distribution::Normal { std: 0.02 }, key: mix(5) };
            let fill = |backend: &mut dyn Backend| {
                let places = [weight.place(0), weight.place(1)];
                Ok(places.iter().try_for_each(|place| place.draw(draw, place.first as u64, backend))?)
            };
            let bytes = weight.after(backend.as_mut(), fill).expect("inside the arena");
            let out = |name: &str, dtype, region, coded| OutTensor {
                name: name.to_owned(),
                shape: if coded { weight.matrix } else { Shape::new(&[9]) },
                dtype,
                region,
                coded: coded.then(|| weight.place(1)),
            };
            let few = Region { bytes: 9, ..weight.region };
            let tensors = [out("a", DType::U8, few, false), out("b", DType::F32, weight.region, true)];
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("model.safetensors");
            let mut file = Vec::new();
            write_safetensors(&path, &mut file, &tensors, &|region, bytes| backend.read(region, bytes))
                .expect("written");
            assert_eq!(file.len() as u64, safetensors_bytes(&tensors));
            std::fs::write(&path, file).expect("writable");
            let files = Checkpoint::open(folder.path(), "model").expect("well-formed");
            let mut found = vec![0.0; weight.matrix.elements()];
            files.read("b", &weight.matrix, 0, &mut found).expect("readable");
            let what = format!("{stem} on {}", backend.name());
            assert_same(&found, &weight.decoded(&bytes)[weight.matrix.elements()..], &what);
        }
    }
}

/// As encoded by one thread from the numbers that a float32 weight would have, in more pieces than one.
#[test]
fn draws_are_encoded_alike_everywhere() {
    let draw = Draw { distribution: Distribution::Normal { std: 0.02 }, key: mix(3) };
    for (format, stem) in FORMATS {
        let weight = Weight::new(format, [2048, 3072], 1);
        let first = 1 << 33;
        let numbers: Vec<f32> = (0..weight.elements as u64).map(|index| draw.at(first + index)).collect();
        let mut expected: Option<Vec<u8>> = None;
        for mut backend in devices() {
            let fill = |backend: &mut dyn Backend| Ok(weight.place(0).draw(draw, first, backend)?);
            let bytes = weight.after(backend.as_mut(), fill).expect("inside the arena");
            let decoded = weight.decoded(&bytes);
            let off = |(x, y): (&f32, &f32)| f64::from(x - y).powi(2);
            let error = decoded.iter().zip(&numbers).map(off).sum::<f64>() / numbers.len() as f64;
            assert!(error.sqrt() < 0.1 * 0.02, "{stem}: {}", error.sqrt());
            assert_same(
                &bytes,
                expected.get_or_insert_with(|| bytes.clone()),
                &format!("{stem} on {}", backend.name()),
            );
        }
    }
}

type Tensor<'a> = (&'a str, StoredType, &'a [usize], Vec<u8>);

/// A folder with these tensors.
fn folder(tensors: &[Tensor<'_>]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let entries = tensors.iter().map(|(name, dtype, shape, bytes)| (*name, *dtype, *shape, bytes.len() as u64));
    let header = safetensors_header(entries);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    tensors.iter().for_each(|(.., bytes)| file.extend(bytes));
    std::fs::write(folder.path().join("model.safetensors"), file).expect("writable");
    folder
}

/// What loading a matrix of 128 by 128 as such a weight says.
fn refusal(tensors: &[Tensor<'_>], format: WeightFormat) -> (WeightError, Vec<String>) {
    let folder = folder(tensors);
    let files = Checkpoint::open(folder.path(), "model").expect("well-formed");
    let weight = Weight::new(format, [128, 128], 1);
    let mut backend = CpuBackend::new(Some(1));
    backend.allocate(ARENA_BYTES).expect("some memory");
    let loaded =
        weight.after(&mut backend, |backend| files.load_coded("a.weight", &weight.matrix, &weight.place(0), backend));
    let error = loaded.expect_err("it is no such weight");
    let hints = error.hints();
    (error, hints)
}

const U8: StoredType = StoredType::U8;
const SQUARE: &[usize] = &[128, 128];

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A weight in nf4 whose description is this.
fn nf4(state: &str) -> Vec<Tensor<'static>> {
    let text = state.as_bytes().to_vec();
    let length: &'static [usize] = Box::leak(Box::new([text.len()]));
    vec![
        ("a.weight", U8, &[8192, 1], vec![0x77; 8192]),
        ("a.weight.absmax", U8, &[256], vec![0; 256]),
        ("a.weight.nested_absmax", StoredType::F32, &[1], bytes_of(&[1.0])),
        ("a.weight.nested_quant_map", StoredType::F32, &[256], bytes_of(plimsoll_graph::Code::DynamicSigned.numbers())),
        ("a.weight.quant_map", StoredType::F32, &[16], bytes_of(plimsoll_graph::Code::Nf4.numbers())),
        ("a.weight.quant_state.bitsandbytes__nf4", U8, length, text),
    ]
}

const STATE: &str = r#"{"blocksize": 64, "shape": [128, 128], "nested_blocksize": 256, "nested_offset": 0.5}"#;

#[test]
fn what_cannot_be_loaded_is_refused() {
    let check = |tensors: Vec<Tensor<'_>>, format: WeightFormat, says: &str, hint: &str| {
        let (error, hints) = refusal(&tensors, format);
        assert!(error.to_string().contains(says), "{error} instead of {says}");
        assert!(hints.iter().any(|found| found.contains(hint)), "{hints:?} instead of {hint} after {error}");
    };
    let state = |from: &str, to: &str| nf4(&STATE.replace(from, to));
    let without = |part: &str| -> Vec<Tensor<'static>> {
        nf4(STATE).into_iter().filter(|(name, ..)| !name.ends_with(part)).collect()
    };
    let eight = |dtype| ("a.weight", dtype, SQUARE, vec![1; 1 << 14]);
    let (nf4_base, int8, fp8) = (WeightFormat::Nf4, WeightFormat::Int8, WeightFormat::E4m3);
    check(state(r#""blocksize": 64"#, r#""blocksize": 128"#), nf4_base, "`blocksize` of 128", "blocks of 64");
    check(
        state(r#""nested_blocksize": 256"#, r#""nested_blocksize": 64"#),
        nf4_base,
        "`nested_blocksize` of 64",
        "256",
    );
    check(state("[128, 128]", "[64, 256]"), nf4_base, "[64, 256]", "one model");
    check(state("0.5", "null"), nf4_base, "no `nested_offset`", "again");
    check(state("{", "["), nf4_base, "quant_state", "again");
    check(without(".quant_map"), nf4_base, "no tensor `a.weight.quant_map`", "one model");
    check(nf4(STATE), int8, "in nf4, this run's base is int8", "format of the folder");
    let mut single = without("nested_absmax");
    single[1] = ("a.weight.absmax", StoredType::F32, &[256], bytes_of(&[1.0; 256]));
    check(single, nf4_base, "without double quantisation", "bnb_4bit_use_double_quant=True");
    let fp4 = vec![
        ("a.weight", U8, SQUARE, vec![0; 1 << 14]),
        ("a.weight.quant_state.bitsandbytes__fp4", U8, &[2][..], vec![0; 2]),
    ];
    check(fp4, nf4_base, "as fp4 of bitsandbytes", "nf4");
    check(vec![eight(StoredType::I8)], int8, "without the `SCB`", "BF16");
    check(vec![eight(StoredType::F8_E4M3)], fp8, "without a `weight_scale`", "BF16");
    let blocks = ("a.weight_scale_inv", StoredType::F32, &[1, 1][..], bytes_of(&[1.0]));
    check(vec![eight(StoredType::F8_E4M3), blocks], fp8, "square blocks", "BF16");
    let groups = ("a.weight_scale", StoredType::F32, &[128, 2][..], bytes_of(&[1.0; 256]));
    check(vec![eight(StoredType::F8_E4M3), groups], fp8, "256 scales for 128 rows", "BF16");
    check(vec![("a.qweight", StoredType::I32, &[1][..], vec![0; 4])], nf4_base, "GPTQ or AWQ", "BF16");
    check(vec![("a.weight_packed", StoredType::I32, &[1][..], vec![0; 4])], nf4_base, "compressed-tensors", "BF16");
}

#[test]
fn what_is_no_number_is_noticed() {
    let mut plain = bytes_of(&[1.0; 1 << 14]);
    plain[4 * 12_345..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let scales = |bad: f32| {
        let mut scales = [1.0; 128];
        scales[77] = bad;
        bytes_of(&scales)
    };
    let mut codes = vec![1; 1 << 14];
    codes[9_999] = 0xff;
    let fp8 = |codes: Vec<u8>, scales: Vec<u8>| {
        vec![
            ("a.weight", StoredType::F8_E4M3, SQUARE, codes),
            ("a.weight_scale", StoredType::F32, &[128, 1][..], scales),
        ]
    };
    let mut nested = nf4(STATE);
    nested[2].3 = bytes_of(&[f32::INFINITY]);
    for (tensors, format) in [
        (vec![("a.weight", StoredType::F32, SQUARE, plain)], WeightFormat::Nf4),
        (fp8(vec![1; 1 << 14], scales(f32::NAN)), WeightFormat::E4m3),
        (fp8(codes, scales(1.0)), WeightFormat::E4m3),
        (nested, WeightFormat::Nf4),
    ] {
        let (error, _) = refusal(&tensors, format);
        assert!(matches!(&error, WeightError::NotFinite { name, .. } if name.starts_with("a.weight")), "{error}");
    }
    // What it takes for the same to be loaded.
    let folder = folder(&fp8(vec![1; 1 << 14], scales(1.0)));
    let files = Checkpoint::open(folder.path(), "model").expect("well-formed");
    let mut numbers = vec![0.0; 1 << 14];
    files.read("a.weight", &Shape::new(SQUARE), 0, &mut numbers).expect("finite");
    let missing = files.read("b.weight", &Shape::new(SQUARE), 0, &mut numbers).expect_err("absent");
    assert!(matches!(missing, WeightError::NoTensor { .. }), "{missing}");
}
