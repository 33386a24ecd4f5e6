//! Exporting holds a few mebibytes, however large a tensor is: measured by counting every allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;
use std::io::Write;

use plimsoll_train::GgufType;
use tempfile::TempDir;

use crate::{export, read};

struct Counting;

thread_local! {
    /// Bytes that this thread holds, and the most it held.
    static HELD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn count(taken: usize, given_back: usize) {
    // A thread that ends has no counter any more.
    let _ = HELD.try_with(|held| {
        let now = (held.get().0 + taken).saturating_sub(given_back);
        held.set((now, held.get().1.max(now)));
    });
}

// SAFETY: every call is passed on to the system's allocator as it came; counting touches nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A model whose embedding alone is 24 MiB; no numbers but zeros.
#[test]
fn a_large_tensor_goes_through_a_small_buffer() {
    const ROWS: usize = 24 << 10;
    let here = TempDir::new().expect("a folder");
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": ROWS, "hidden_size": 256, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": true,
    });
    std::fs::write(here.path().join("config.json"), config.to_string()).expect("written");
    let block = |name: &str| format!("model.layers.0.{name}.weight");
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![ROWS, 256])];
    tensors.extend(["q", "k", "v", "o"].map(|side| (block(&format!("self_attn.{side}_proj")), vec![256, 256])));
    tensors.extend(["gate", "up"].map(|side| (block(&format!("mlp.{side}_proj")), vec![32, 256])));
    tensors.push((block("mlp.down_proj"), vec![256, 32]));
    tensors.extend(["input_layernorm", "post_attention_layernorm"].map(|norm| (block(norm), vec![256])));
    tensors.push(("model.norm.weight".to_owned(), vec![256]));
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for (name, shape) in tensors {
        let end = offset + 4 * shape.iter().product::<usize>();
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [offset, end]});
        header.insert(name, entry);
        offset = end;
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = File::create(here.path().join("model.safetensors")).expect("a file");
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("written");
    file.write_all(header.as_bytes()).expect("written");
    file.set_len((8 + header.len() + offset) as u64).expect("room");
    let out = here.path().join("model.gguf");
    let before = HELD.get().0;
    HELD.set((before, before));
    export(here.path(), Some(GgufType::Q8_0), &out).expect("exported");
    let held = HELD.get().1 - before;
    // A piece of four mebibytes and what it becomes; the embedding alone is six times as large.
    assert!(held < 8 << 20, "{held} bytes");
    assert!(held > 4 << 20, "only {held} bytes are counted");
    assert_eq!(read(&out).tensors["token_embd.weight"].data.len(), ROWS * 256 / 32 * 34);
}
