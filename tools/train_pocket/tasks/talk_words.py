"""Words for `talk.py`: tasks as people name them, each with examples; things of the world; what people are said to have done."""

from entities import UNSEEN_WORDS

# What one asks it to do, how one names the task, and examples to answer with.
TASK_WORDS = [
    (["do arithmetic", "calculate", "add numbers", "do math", "do maths", "multiply", "solve a word problem", "solve problems", "count apples", "compute", "do sums", "add and subtract"],
     ["arithmetic", "a word problem", "a sum", "math", "maths", "a calculation", "a number problem", "addition", "a multiplication", "a problem with numbers"],
     ["Ask me: Ana has 12 apples. She buys 7 more. How many apples does Ana have now?", "Ask me: What is 34 * 27?"]),
    (["answer questions", "answer multiple choice questions", "answer a question about facts", "choose the right answer", "do multiple choice", "tell who has what", "read facts", "reason about people"],
     ["a multiple choice question", "choice", "a question about facts", "a question", "multiple choice", "a quiz question", "facts and a question", "reasoning"],
     ["Ask me: Tom likes red. Lily likes blue. Which colour does Lily like? Options: red, blue."]),
    (["find something in a text", "search a long text", "find a code", "read a long text", "look something up", "retrieve a number", "find a needle in a haystack", "read a story", "find a number"],
     ["retrieval", "finding a code in a text", "a long text", "a search in a text", "a needle in a haystack", "a text with a code", "looking something up"],
     ["Give me a long text in which the code for the lamp is K381, and ask me: What is the code for the lamp?"]),
    (["call tools", "call a tool", "use tools", "call a function", "use functions", "make tool calls", "use an API", "work with tools"],
     ["a tool call", "tools", "calling a tool", "a function call", "tool use", "a call with parameters", "function calling"],
     ["Declare a tool get_weather with a city, and ask me: Get the weather in Rome."]),
    (["trace a program", "run a program", "tell what code prints", "read code", "trace code", "run Python", "follow a program", "execute a program", "say what a program prints"],
     ["tracing", "a program", "tracing a program", "code to trace", "a Python program", "a program and its output", "a trace"],
     ["Ask me what this prints: x = 3, then x = x + 4, then print(x)."]),
    (["write code", "write a function", "program", "code", "write Python", "write a small program", "write a Python function", "help me code"],
     ["a function", "code", "a Python function", "writing a function", "programming", "coding", "a function with tests"],
     ["Ask me: Write a function add_three(x) that returns x plus 3."]),
    (["repeat words", "repeat after me", "echo", "say my words", "repeat a sentence", "copy a text"],
     ["an echo", "repeating", "copying", "an echo of words", "repeating words"], ["Ask me: Repeat after me: red blue green"]),
    (["count", "count to ten", "count numbers", "say the numbers", "count for me"], ["counting", "numbers in a row", "a count", "counting numbers"],
     ["Ask me: Count from 3 to 9."]),
]

NOUNS = [word for word in """moon sun sea star planet earth mountain river ocean desert forest island volcano storm rain snow wind weather climate fire water air gold iron oil glass paper wood stone plastic
energy light sound gravity atom electron magnet physics chemistry biology science history art music film movie theatre dance poetry novel book newspaper television radio internet computer phone
software browser robot engine car bicycle train plane ship rocket bridge house castle church temple school university hospital bank shop market money tax price job salary law court police army war peace
king queen president government election democracy country capital city village street map language English French German Chinese word letter grammar alphabet number mathematics geometry algebra
infinity zero prime pi logic philosophy religion god soul mind brain heart blood bone muscle skin eye ear hand foot health medicine virus disease fever pain sleep dream love hate fear joy anger
friendship family mother father child baby marriage wedding birthday death life animal dog cat horse lion tiger elephant whale shark bird eagle bee ant spider dinosaur tree flower rose grass fruit
apple banana bread cheese pizza pasta rice soup coffee tea beer wine milk sugar salt kitchen recipe breakfast dinner restaurant hotel holiday travel beach football tennis chess cricket sport game team
player winner record olympics painting picture photo camera colour red song guitar piano opera singer actor writer doctor teacher lawyer farmer soldier politics economy industry company factory
market stock bitcoin future past time clock year century spring summer autumn winter Monday Christmas meaning truth beauty""".split() if word not in UNSEEN_WORDS]

ABOUT = ["the universe", "black holes", "the second world war", "the meaning of life", "global warming", "quantum physics", "machine learning", "artificial intelligence", "neural networks", "the stock market",
         "the roman empire", "the french revolution", "Shakespeare", "Einstein", "Napoleon", "Mozart", "Newton", "the Beatles", "Python", "Linux", "the United States", "the best film", "my homework", "the human body",
         "today's news", "the next election", "world peace", "the speed of light", "the solar system", "deep learning", "a good life", "the highest mountain", "the longest river", "the first man on the moon"]

ACTIONS = ["wrote", "painted", "built", "invented", "discovered", "won", "found", "made", "sang", "designed", "lost", "destroyed", "founded", "sold", "bought", "wrote about", "played", "directed", "ruled", "conquered"]
