// Has nothing of its own: CMake attaches the precompiled headers of sanitizer builds to it (TesseraRoom.cmake).
