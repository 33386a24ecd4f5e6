//! Tokenizers trained from rows.

use plimsoll_data::{
    BUILT_IN_TEMPLATES, DataError, Tokenizer, VocabularyKind, VocabularyOptions, VocabularyProgress, train_tokenizer,
};
use serde_json::json;

use crate::fixtures::{Folder, open, with_hint};

const SENTENCES: [&str; 4] = [
    "The draught of the ship is measured at the line.",
    "A loaded ship lies deeper than an empty ship.",
    "Grüße an den Hafen: 船は重い, the harbour answers.",
    "def weigh(ship):\n    return ship.hull + ship.load\n",
];

fn rows(folder: &Folder, count: usize) -> std::path::PathBuf {
    let rows: Vec<_> = (0..count)
        .map(|i| json!({"prompt": format!("{} {i}", SENTENCES[i % 4]), "response": SENTENCES[(i + 1) % 4]}))
        .collect();
    folder.jsonl(&rows)
}

#[test]
fn every_text_survives_both_kinds() {
    let folder = Folder::new();
    let source = open(&[rows(&folder, 400)]).expect("opens");
    for (kind, vocab_size) in [(VocabularyKind::Bpe, 400), (VocabularyKind::Unigram, 500)] {
        let mut options = VocabularyOptions::new(kind, vocab_size);
        options.template = Some("chatml".to_owned());
        options.specials = vec!["<tool>".to_owned(), "<|im_end|>".to_owned()];
        let trained = train_tokenizer(&source, &options, &mut |_| {}).expect("trains");
        assert!(trained.vocab_size <= vocab_size && trained.vocab_size > 330, "{kind:?}: {}", trained.vocab_size);
        assert_eq!((trained.counted.rows, trained.counted.bad_rows), (400, 0));
        let out = folder.path().join(format!("{kind:?}/new"));
        trained.save(&out).expect("saves");
        let tokenizer = Tokenizer::from_folder(&out).expect("loads");
        assert_eq!(tokenizer.eos_token(), Some("<|im_end|>"));
        assert_eq!(
            ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"].map(|t| tokenizer.token_id(t)),
            [0, 1, 2, 3].map(Some)
        );
        for text in
            SENTENCES.into_iter().chain(["never seen: Ωmega 𝔘 \u{7f}\n\n  x", "a", "  two  spaces ", "<0x0A> <unk>"])
        {
            let ids = tokenizer.encode(text, true).expect("encodes");
            assert_eq!(tokenizer.decode(&ids, false).expect("decodes"), text, "{kind:?}");
        }
        assert_eq!(tokenizer.encode("a<tool>b", true).expect("encodes").iter().filter(|id| **id == 3).count(), 1);
        let words = tokenizer.encode("the ship", true).expect("encodes").len();
        assert!(words <= 4, "{kind:?}: frequent words are short, here {words} tokens");
        assert!(tokenizer.chat_template().is_some());
        let again = train_tokenizer(&source, &options, &mut |_| {}).expect("trains");
        // Equal likelihoods are summed in any order, so unigram pieces at the edge may differ.
        assert!(kind == VocabularyKind::Unigram || again.files() == trained.files(), "the same rows, the same files");
    }
}

/// Chat in Chinese: paragraphs without a space are learnt from, frequent words are one piece, and what was never seen is
/// written in bytes.
#[test]
fn unigram_pieces_of_chinese() {
    let folder = Folder::new();
    let clauses = ["今天天气很好", "我们去公园散步", "你好", "三斤苹果十五块", "模型训练完成了", "文件保存在本地"];
    let mut state = 1u32;
    let mut draw = |count: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % count
    };
    let rows: Vec<_> = (0..400)
        .map(|_| {
            let clause = |_| format!("{}{}", clauses[draw(6)], ["，", "。", "？", "！"][draw(4)]);
            let response: String = (0..20).map(clause).collect();
            json!({"prompt": clauses[draw(6)], "response": response})
        })
        .collect();
    let source = open(&[folder.jsonl(&rows)]).expect("opens");
    let options = VocabularyOptions::new(VocabularyKind::Unigram, 450);
    let trained = train_tokenizer(&source, &options, &mut |_| {}).expect("trains");
    let out = folder.path().join("chinese");
    trained.save(&out).expect("saves");
    let tokenizer = Tokenizer::from_folder(&out).expect("loads");
    for text in ["今天天气很好，我们去公园散步。", "模型训练完成了！文件保存在本地？"] {
        let ids = tokenizer.encode(text, false).expect("encodes");
        assert!(ids.len() <= 4, "{text} is frequent, here {} tokens", ids.len());
    }
    let unknown = tokenizer.token_id("<unk>").expect("there is one");
    for text in ["你好，小王！今天天气怎么样？", "鲲鹏𠮷野家 🚢 is new", "第３次　全角、\n换行\t", "  两  个  空格  "]
    {
        let ids = tokenizer.encode(text, true).expect("encodes");
        assert_eq!(tokenizer.decode(&ids, false).expect("decodes"), text);
        assert!(!ids.contains(&unknown), "{text}");
    }
    // No row has a space.
    assert_eq!(tokenizer.encode(" ", false).expect("encodes").len(), 1);
    let bytes = "鲲".bytes().map(|byte| tokenizer.token_id(&format!("<0x{byte:02X}>")).expect("a byte"));
    assert_eq!(tokenizer.encode("鲲", false).expect("encodes"), bytes.collect::<Vec<_>>());
}

#[test]
fn limits_and_few_words_hold() {
    let folder = Folder::new();
    let source = open(&[rows(&folder, 4000)]).expect("opens");
    let mut options = VocabularyOptions::new(VocabularyKind::Bpe, 300);
    options.limit_bytes = Some(20_000);
    options.words_max = 20;
    let mut last = VocabularyProgress::default();
    let trained = train_tokenizer(&source, &options, &mut |progress| last = progress).expect("trains");
    assert_eq!(trained.counted, last);
    assert!(last.text_bytes >= 10_000 && last.text_bytes < 20_500, "{last:?}");
    assert!(last.words <= 20 && last.dropped > 0, "{last:?}");
    let numbers = last.rows * (4000 / last.rows);
    assert!(numbers > 3000, "rows from all of the file: {last:?}");
}

#[test]
fn what_cannot_be_trained_is_said() {
    let folder = Folder::new();
    let source = open(&[rows(&folder, 4)]).expect("opens");
    let check = |options: VocabularyOptions, part: &str| {
        let error = with_hint(&train_tokenizer(&source, &options, &mut |_| {}).expect_err("is refused"));
        assert!(error.contains(part) && error.contains("hint: "), "{error}");
    };
    check(VocabularyOptions::new(VocabularyKind::Bpe, 257), "257");
    let template = Some("lama".to_owned());
    check(VocabularyOptions { template, ..VocabularyOptions::new(VocabularyKind::Bpe, 300) }, "lama");
    let specials = vec![" ".to_owned()];
    check(VocabularyOptions { specials, ..VocabularyOptions::new(VocabularyKind::Bpe, 300) }, "special token");
    let empty = open(&[folder.write("empty.jsonl", "")]).expect("opens");
    let options = VocabularyOptions::new(VocabularyKind::Unigram, 400);
    let error = train_tokenizer(&empty, &options, &mut |_| {}).expect_err("is empty");
    assert!(matches!(error, DataError::Empty { .. }), "{error}");
    let bad = folder.write("bad.jsonl", "{\"text\": \"one two\"}\noops\n{\"text\": \"three\"}");
    let trained =
        train_tokenizer(&open(&[bad]).expect("opens"), &VocabularyOptions::new(VocabularyKind::Bpe, 300), &mut |_| {});
    assert_eq!(trained.expect("trains").counted.bad_rows, 1);
}

/// Each row is taken for what it is, whatever those before it were.
#[test]
fn files_of_several_formats_make_one_vocabulary() {
    let folder = Folder::new();
    let lines = |row: serde_json::Value| format!("{row}\n").repeat(300);
    let files = [
        folder.write("a.jsonl", lines(json!({"text": "alpha"}))),
        folder.write("b.jsonl", lines(json!({"messages": [{"role": "user", "content": "beta"}]}))),
        folder.write("c.jsonl", lines(json!({"prompt": "gamma", "chosen": "delta", "rejected": "epsilon"}))),
        folder.write("d.txt", "zeta\n\n".repeat(40)),
    ];
    let source = open(&files).expect("opens");
    let options = VocabularyOptions::new(VocabularyKind::Bpe, 320);
    let trained = train_tokenizer(&source, &options, &mut |_| {}).expect("trains");
    assert_eq!((trained.counted.rows, trained.counted.bad_rows), (940, 0));
    assert_eq!(trained.counted.words, 6);
}

#[test]
fn every_built_in_template_can_be_trained_for() {
    let folder = Folder::new();
    let source = open(&[rows(&folder, 40)]).expect("opens");
    for name in BUILT_IN_TEMPLATES {
        let template = Some(name.to_owned());
        let options = VocabularyOptions { template, ..VocabularyOptions::new(VocabularyKind::Bpe, 300) };
        let trained = train_tokenizer(&source, &options, &mut |_| {}).expect("trains");
        let [(_, json), (_, config)] = trained.files();
        let own = Tokenizer::from_bytes("own", json.as_bytes(), Some(config)).expect("loads");
        let messages = [json!({"role": "user", "content": "May she?"}), json!({"role": "assistant", "content": "Yes"})];
        let text = |tokenizer: &Tokenizer| {
            let template = tokenizer.chat_template().expect("a template");
            template.render_marked(&messages, &serde_json::Value::Null, false).expect("renders")
        };
        let expected = text(&own);
        assert_eq!(expected, text(&own.with_template(name).expect("is there")), "{name}");
        assert_eq!(expected.answers.as_deref().map(<[_]>::len), Some(1), "{name}");
        // A model that ends its turn must be taken to have stopped.
        let tokenizer = Tokenizer::from_bytes("own", json.as_bytes(), Some(config)).expect("loads");
        assert_eq!(tokenizer.eos_token(), tokenizer.chat_template().expect("a template").end_of_turn(), "{name}");
        assert!(config.contains("\"pad_token\": \"<|endoftext|>\""), "{config}");
    }
}

/// Whatever the vocabulary, the bytes of a text's tokens are the text's.
#[test]
fn byte_lengths_add_up_to_the_text() {
    let folder = Folder::new();
    let source = open(&[rows(&folder, 200)]).expect("opens");
    for (kind, vocab_size) in [(VocabularyKind::Bpe, 400), (VocabularyKind::Unigram, 500)] {
        let trained = train_tokenizer(&source, &VocabularyOptions::new(kind, vocab_size), &mut |_| {}).expect("trains");
        let [(_, json), (_, config)] = trained.files();
        let tokenizer = Tokenizer::from_bytes("own", json.as_bytes(), Some(config)).expect("loads");
        let lengths = tokenizer.byte_lengths();
        assert_eq!(lengths.len(), tokenizer.vocab_size());
        assert_eq!(tokenizer.eos_id().map(|eos| lengths[eos as usize]), Some(0), "{kind:?}");
        for text in ["May she float?", " two  spaces\nand a line", "größer 漢字 👍 \u{1}", "<0x0A>", ""] {
            let ids = tokenizer.encode(text, false).expect("encodes");
            let bytes: u32 = ids.iter().map(|id| lengths[*id as usize]).sum();
            assert_eq!(bytes as usize, text.len(), "{kind:?}: {text:?} {ids:?}");
        }
    }
}
