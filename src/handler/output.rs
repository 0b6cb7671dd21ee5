//! What handlers, and whoever posts a result later, may give as output besides text.

use base64::{Engine, prelude::BASE64_STANDARD};

use super::{Error, Response};
use crate::session::{Output, Part};

/// What a handler put out, as its config says. Nothing to say is a success in every form.
pub(crate) fn read(response: Response, bytes: &[u8]) -> Result<Output, Error> {
    match response {
        Response::Content if !bytes.is_empty() => content(bytes),
        Response::Image if !bytes.is_empty() => match image_type(bytes) {
            Some(kind) => Ok(image(kind, bytes)),
            None => Err(Error::fatal("the answer is no PNG, JPEG, GIF or WebP image")),
        },
        // What is no UTF-8 becomes U+FFFD: a result is text.
        _ => Ok(Output::Text(String::from_utf8_lossy(bytes).into_owned())),
    }
}

/// A JSON array of content parts; images by `https:` or `data:` URL only.
pub(crate) fn content(json: &[u8]) -> Result<Output, Error> {
    let parts: Vec<Part> = serde_json::from_slice(json)
        .map_err(|_| Error::fatal("the answer is not an array of input_text and input_image parts"))?;
    let sendable = |part: &Part| match part {
        Part::Text { .. } => true,
        Part::Image { image_url } => image_url.starts_with("https://") || image_url.starts_with("data:image/"),
    };
    match parts.iter().all(sendable) {
        true => Ok(Output::Content(parts)),
        false => Err(Error::fatal("an image_url of the answer is neither https: nor data:image/")),
    }
}

/// The bytes of an image as the only part. `kind` is `image/…`.
pub(crate) fn image(kind: &str, bytes: &[u8]) -> Output {
    Output::Content(vec![Part::Image { image_url: format!("data:{kind};base64,{}", BASE64_STANDARD.encode(bytes)) }])
}

/// The type of an image that says itself what it is.
fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_known_by_their_first_bytes() {
        assert_eq!(image_type(b"\x89PNG\r\n\x1a\n...."), Some("image/png"));
        assert_eq!(image_type(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(image_type(b"GIF89a"), Some("image/gif"));
        assert_eq!(image_type(b"RIFF\x10\0\0\0WEBPVP8 "), Some("image/webp"));
        for other in [&b""[..], b"\x89PNG", b"<svg xmlns=\"\"/>", b"RIFF\x10\0\0\0WAVE", b"GIF88a"] {
            assert_eq!(image_type(other), None, "{other:?}");
        }
    }
}
