# Writes what the binary says of its commands: a manual page and completions.
#   cmake -DLOOPSPEC=... -DOUTPUT=folder -P WriteCommandDocs.cmake
# Without the settings of whoever builds.
set(ENV{LOOPSPEC_CONFIG} "")
file(MAKE_DIRECTORY "${OUTPUT}")
foreach(entry "man:loopspec.1" "completion bash:loopspec.bash" "completion zsh:loopspec.zsh" "completion fish:loopspec.fish")
  string(REPLACE ":" ";" entry "${entry}")
  list(GET entry 0 words)
  list(GET entry 1 file)
  string(REPLACE " " ";" words "${words}")
  execute_process(COMMAND "${LOOPSPEC}" ${words} OUTPUT_FILE "${OUTPUT}/${file}" RESULT_VARIABLE status)
  if(NOT status EQUAL 0)  # a binary for another machine, or without a library that only its users have
    message(STATUS "no ${file}: ${LOOPSPEC} does not run here (${status})")
    file(REMOVE "${OUTPUT}/${file}")
  endif()
endforeach()
