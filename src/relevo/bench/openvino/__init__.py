"""`relevo bench openvino-server`: OpenVINO GenAI behind HTTP, so that `relevo bench peers` can ask it."""
